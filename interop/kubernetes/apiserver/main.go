// Command apiserver is Kubernetes' own API server, and etcd as "apiserver etcd". As "apiserver
// follow" it is Kubernetes' own client, and as "apiserver kubectl" kubectl. A module of its own
// pins them, so that weir depends on none of it.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "etcd" {
		etcdmain.Main(os.Args[1:])
		return
	}
	if len(os.Args) == 4 && os.Args[1] == "follow" {
		fmt.Fprintln(os.Stderr, follow(os.Args[2], os.Args[3]))
		os.Exit(1)
	}
	if len(os.Args) > 1 && os.Args[1] == "kubectl" {
		os.Args = os.Args[1:]
		if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
		return
	}
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
