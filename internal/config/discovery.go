package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Discovery is one --discover kubernetes=WHAT[,OPTION=VALUE]..., where WHAT is service/NAME,
// pool/NAME or pods.
type Discovery struct {
	Spec string
	// Service and Pool are the names of a Service and of an InferencePool; both empty: Pods.
	Service, Pool string
	// Selector, Prefill and Decode are requirements on the labels of Pods.
	Selector, Prefill, Decode []string
	Namespace                 string // empty: weir's own
	Ports                     []string
	ModelFrom                 string // label:KEY or annotation:KEY
	Loopback                  bool
	Kubeconfig                string // empty: weir runs in the cluster

	kind, scheme string
	options      []string // of its engines
	prefixed     bool     // names of engines begin with the namespace
}

// Found is what a discovery states about an engine besides its address.
type Found struct {
	Name, Address, Model, Role, Weight string
	BootstrapPort                      int
}

// discoveryOptions are the options of a discovery itself. Others are those of its engines.
var discoveryOptions = []string{"namespace", "selector", "prefill-selector", "decode-selector", "port", "model-from", "loopback", "kubeconfig", "kind", "scheme"}

var (
	objectName  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	requirement = regexp.MustCompile(`^!?[A-Za-z0-9][-A-Za-z0-9_./]{0,316}(!?=[-A-Za-z0-9_.]{0,63})?$`)
)

// ParseDiscovery reads a discovery's specification.
func ParseDiscovery(s string) (d Discovery, err error) {
	wrong := func(format string, args ...any) (Discovery, error) {
		return Discovery{}, fmt.Errorf("discovery %q: %w", s, fmt.Errorf(format, args...))
	}
	head, rest, more := strings.Cut(s, ",")
	system, what, _ := strings.Cut(head, "=")
	if system != "kubernetes" {
		return wrong("unknown kind %q%s; want kubernetes=service/NAME, kubernetes=pool/NAME or kubernetes=pods", system, suggest(system, []string{"kubernetes"}))
	}
	d = Discovery{Spec: s, kind: "auto", scheme: "http"}
	kind, name, named := strings.Cut(what, "/")
	switch {
	case kind == "pods" && !named:
	case (kind == "service" || kind == "pool") && objectName.MatchString(name):
		if kind == "pool" {
			d.Pool = name
		} else {
			d.Service = name
		}
	default:
		return wrong("want service/NAME (a Service), pool/NAME (an InferencePool) or pods after kubernetes=, got %q", what)
	}
	if more {
		for option := range strings.SplitSeq(rest, ",") {
			if err := d.option(option); err != nil {
				return wrong("%w", err)
			}
		}
	}
	if err := d.check(); err != nil {
		return wrong("%w", err)
	}
	return d, nil
}

// option reads one option.
func (d *Discovery) option(option string) (err error) {
	key, value, _ := strings.Cut(option, "=")
	if key = strings.ReplaceAll(key, "_", "-"); value == "" {
		return fmt.Errorf("option %q wants a value, as in namespace=NAME", option)
	}
	required := func(list *[]string) error {
		if !requirement.MatchString(value) {
			return fmt.Errorf("%s=%s: want a requirement on a label, as in %s=app=vllm; give the option again for another requirement", key, value, key)
		}
		*list = append(*list, value)
		return nil
	}
	switch key {
	case "namespace":
		if d.Namespace = value; !objectName.MatchString(value) || len(value) > 63 {
			return fmt.Errorf("namespace=%s: want the name of a namespace", value)
		}
	case "selector":
		return required(&d.Selector)
	case "prefill-selector":
		return required(&d.Prefill)
	case "decode-selector":
		return required(&d.Decode)
	case "port":
		for port := range strings.SplitSeq(value, "+") {
			if n, err := strconv.Atoi(port); err == nil && (n < 1 || n > 65535) || port == "" {
				return fmt.Errorf("port=%s: want the name or number of a port, or several with + between, where each is an engine", value)
			}
			d.Ports = append(d.Ports, port)
		}
	case "model-from":
		if where, of, ok := strings.Cut(value, ":"); !ok || of == "" || where != "label" && where != "annotation" {
			return fmt.Errorf("model-from=%s: want label:KEY or annotation:KEY", value)
		}
		d.ModelFrom = value
	case "loopback":
		if d.Loopback, err = strconv.ParseBool(value); err != nil {
			return fmt.Errorf("loopback=%s: want true or false", value)
		}
	case "kubeconfig":
		d.Kubeconfig = value
	case "kind":
		d.kind = value
	case "scheme":
		if d.scheme = value; value != "http" && value != "https" {
			return fmt.Errorf("scheme=%s: want http or https", value)
		}
	case "name", "role", "bootstrap-port", "bootstrap-host", "resolve", "side-channel", "engine-id":
		return fmt.Errorf("%s= is of one engine, and a discovery has many; pods say it themselves (docs/kubernetes.md)", key)
	default:
		d.options = append(d.options, option)
	}
	return nil
}

// check refuses what does not go together.
func (d *Discovery) check() error {
	switch {
	case d.Service == "" && d.Pool == "" && len(d.Selector)+len(d.Prefill)+len(d.Decode) == 0:
		return errors.New("kubernetes=pods takes every pod of the namespace for an engine: add selector=KEY=VALUE")
	case d.kind == "sglang-ipc" || d.kind == "vllm-core":
		return fmt.Errorf("kind=%s: weir does not connect to engines of this kind, they connect to it; want auto, openai, sglang, vllm or weir", d.kind)
	case d.kind == "weir" && d.scheme == "https":
		return errors.New("scheme=https: for kind=weir add tls=true instead")
	case d.Pool != "" && len(d.Ports) > 0:
		return errors.New("port= is the InferencePool's to say, by its targetPorts")
	}
	if _, _, err := d.Engine(Found{Name: "pod", Address: "192.0.2.1:80"}); err != nil {
		if _, known := options[d.kind]; known {
			for _, option := range d.options {
				key, _, _ := strings.Cut(option, "=")
				if near := suggest(key, discoveryOptions); near != "" {
					return fmt.Errorf("unknown option %q%s; the options are %s, and those of --engine", key, near, strings.Join(discoveryOptions, ", "))
				}
			}
		}
		return err
	}
	return nil
}

// Engine returns an engine that was found, with its specification.
func (d *Discovery) Engine(f Found) (Engine, string, error) {
	at := f.Address
	if d.kind != "weir" {
		at = d.scheme + "://" + at
	}
	name := f.Name
	if d.prefixed && d.Namespace != "" {
		name = d.Namespace + "/" + name
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s=%s,name=%s", d.kind, at, name)
	host, _, _ := net.SplitHostPort(f.Address)
	given := map[string]bool{}
	for _, option := range d.options {
		key, value, _ := strings.Cut(option, "=")
		given[key] = true
		if host, v6 := host, strings.Contains(host, ":"); strings.Contains(value, "*") {
			if v6 {
				host = "[" + host + "]"
			}
			value = strings.ReplaceAll(value, "*", host)
		}
		fmt.Fprintf(&b, ",%s=%s", key, value)
	}
	own := map[string]string{"model": f.Model, "role": f.Role, "weight": f.Weight}
	if f.BootstrapPort != 0 {
		own["bootstrap-port"] = strconv.Itoa(f.BootstrapPort)
	}
	for _, key := range slices.Sorted(maps.Keys(own)) {
		if own[key] != "" && !given[key] {
			fmt.Fprintf(&b, ",%s=%s", key, own[key])
		}
	}
	spec := b.String()
	e, err := ParseEngine(spec)
	return e, spec, err
}

// ParseDiscoveries reads all discoveries. If they are in several namespaces, the names of
// their engines begin with the namespace.
func ParseDiscoveries(specs []string) (all []Discovery, err error) {
	seen := map[string]bool{}
	for _, spec := range specs {
		d, err := ParseDiscovery(spec)
		if err != nil {
			return nil, err
		}
		if seen[spec] {
			return nil, fmt.Errorf("discovery %q is given twice", spec)
		}
		seen[spec] = true
		all = append(all, d)
	}
	several := slices.ContainsFunc(all, func(d Discovery) bool { return d.Namespace != all[0].Namespace })
	for i := range all {
		all[i].prefixed = several
	}
	return all, nil
}

// What returns the object to look for, such as service/NAME.
func (d *Discovery) What() string {
	switch {
	case d.Service != "":
		return "service/" + d.Service
	case d.Pool != "":
		return "pool/" + d.Pool
	}
	return "pods " + strings.Join(slices.Concat(d.Selector, d.Prefill, d.Decode), ",")
}
