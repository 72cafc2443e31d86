package config

import (
	"strings"
	"testing"
)

// A discovery has its own options, and hands the others to each of its engines.
func TestParseDiscovery(t *testing.T) {
	found := Found{Name: "p-0", Address: "10.0.0.1:8000", Role: "prefill", BootstrapPort: 8998, Model: "m", Weight: "0.5"}
	for spec, want := range map[string]string{
		"kubernetes=service/vllm,namespace=models,port=http":                                                 "auto=http://10.0.0.1:8000,name=p-0,bootstrap-port=8998,model=m,role=prefill,weight=0.5",
		"kubernetes=pods,selector=app=vllm,selector=!canary,kind=openai,scheme=https,ca=/ca.pem,model=n":     "openai=https://10.0.0.1:8000,name=p-0,ca=/ca.pem,model=n,bootstrap-port=8998,role=prefill,weight=0.5",
		"kubernetes=pods,prefill-selector=app=p,decode-selector=app=d,port=8000+8001,kv-events=tcp://*:5557": "auto=http://10.0.0.1:8000,name=p-0,kv-events=tcp://10.0.0.1:5557,bootstrap-port=8998,model=m,role=prefill,weight=0.5",
		"kubernetes=pool/p,kubeconfig=/k,loopback=true,model-from=label:llm-d.ai/model":                      "auto=http://10.0.0.1:8000,name=p-0,bootstrap-port=8998,model=m,role=prefill,weight=0.5",
	} {
		d, err := ParseDiscovery(spec)
		if err != nil {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		if _, got, err := d.Engine(found); got != want || err != nil {
			t.Errorf("%s:\n%s, %v\nwant\n%s", spec, got, err, want)
		}
	}
	for spec, want := range map[string]string{
		"kubernets=service/a":                         `did you mean "kubernetes"`,
		"kubernetes=services/a":                       "want service/NAME",
		"kubernetes=service/A_b":                      "want service/NAME",
		"kubernetes=pods":                             "add selector=KEY=VALUE",
		"kubernetes=pods,selector=a b":                "want a requirement on a label",
		"kubernetes=service/a,port=0":                 "name or number of a port",
		"kubernetes=service/a,port=http+":             "name or number of a port",
		"kubernetes=service/a,namespce=b":             `did you mean "namespace"`,
		"kubernetes=service/a,name=b":                 "of one engine",
		"kubernetes=service/a,kind=vllm-core":         "they connect to it",
		"kubernetes=service/a,kind=weir,scheme=https": "tls=true",
		"kubernetes=pool/a,port=1":                    "the InferencePool's to say",
		"kubernetes=service/a,model-from=x":           "label:KEY",
		"kubernetes=service/a,loopback=maybe":         "true or false",
		"kubernetes=service/a,ca=/x":                  "https://",
	} {
		if _, err := ParseDiscovery(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
	all, err := ParseDiscoveries([]string{"kubernetes=service/a,namespace=x", "kubernetes=service/a,namespace=y"})
	if err != nil {
		t.Fatal(err)
	}
	if e, _, _ := all[1].Engine(found); e.Name != "y/p-0" {
		t.Errorf("in two namespaces an engine is named %s", e.Name)
	}
	if _, err := ParseDiscoveries([]string{"kubernetes=service/a", "kubernetes=service/a"}); err == nil {
		t.Error("the same discovery is taken twice")
	}
}
