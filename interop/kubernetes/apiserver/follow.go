package main

import (
	"context"
	"fmt"
	"os"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// follow has client-go's informers follow the Pods and EndpointSlices of a namespace, and prints
// what they report, a line each.
func follow(kubeconfig, namespace string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = "application/json"
	config.AcceptContentTypes = "application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	report := func(what string) cache.ResourceEventHandlerFuncs {
		return cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { fmt.Println(what, "added", line(o)) },
			UpdateFunc: func(_, o any) { fmt.Println(what, "modified", line(o)) },
			DeleteFunc: func(o any) { fmt.Println(what, "deleted", line(o)) },
		}
	}
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(report("pod")); err != nil {
		return err
	}
	if _, err := factory.Discovery().V1().EndpointSlices().Informer().AddEventHandler(report("slice")); err != nil {
		return err
	}
	factory.Start(context.Background().Done())
	for kind, ok := range factory.WaitForCacheSync(context.Background().Done()) {
		fmt.Fprintln(os.Stderr, kind, ok)
	}
	fmt.Println("synced")
	time.Sleep(time.Hour)
	return nil
}

// line is what a test compares of an object.
func line(o any) string {
	switch o := o.(type) {
	case *core.Pod:
		ready := core.ConditionFalse
		for _, c := range o.Status.Conditions {
			if c.Type == core.PodReady {
				ready = c.Status
			}
		}
		return fmt.Sprintf("%s %s %s %s", o.Name, o.Status.PodIP, o.Labels["app"], ready)
	case *discovery.EndpointSlice:
		text := o.Name
		for _, e := range o.Endpoints {
			text += fmt.Sprintf(" %s=%v", e.Addresses[0], *e.Conditions.Ready)
		}
		return text
	case cache.DeletedFinalStateUnknown:
		return o.Key
	}
	return fmt.Sprintf("%T", o)
}
