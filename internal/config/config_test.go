package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/tenancy"
)

var flags = []string{"listen", "engine", "model", "max-body", "drain-timeout"}

func TestFileSetsWhatFlagsSet(t *testing.T) {
	f, problems := parse([]byte(`
# a comment
listen: 127.0.0.1:9000
max-body: 1048576
engine:
  - openai=http://127.0.0.1:30000,model=m
  - kind: weir
    url: 127.0.0.1:9001
    name: left
  - {kind: sglang, url: "h:1", role: prefill, bootstrap_port: 9000}
  - {url: "https://h:2", key-file: /k, ca: /ca.pem, max-running: 8}
model:
  - {name: relayed, alias: other}
  - {name: m, dir: /models/m, alias: [a, b], lora: [sql=/l/sql, chat=/l/chat], tool-parser: hermes, reasoning-parser: think}
  - /models/n
drain-timeout: 5s
`), flags)
	if problems != nil {
		t.Fatal(problems)
	}
	if got := fmt.Sprint(f.Lines["max-body"], f.Lines["engine"]); got != "[4] [6 7 10 11]" {
		t.Errorf("lines %s", got)
	}
	want := map[string][]string{
		"listen":        {"127.0.0.1:9000"},
		"max-body":      {"1048576"},
		"engine":        {"openai=http://127.0.0.1:30000,model=m", "weir=127.0.0.1:9001,name=left", "sglang=h:1,bootstrap-port=9000,role=prefill", "https://h:2,ca=/ca.pem,key-file=/k,max-running=8"},
		"model":         {"relayed=,alias=other", "m=/models/m,alias=a,alias=b,lora=sql=/l/sql,lora=chat=/l/chat,tool-parser=hermes,reasoning-parser=think", "/models/n"},
		"drain-timeout": {"5s"},
	}
	if d := cmp.Diff(want, f.Values); d != "" {
		t.Fatal(d)
	}
}

func TestFileErrorsNameLineAndFix(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"listen: a\nlisten_admin: b\n", `line 2: unknown key "listen_admin" (did you mean "listen"?)`},
		{"apiVersion: v1\n", `line 1: unknown key "apiVersion"; the keys are the flags of weir serve (weir serve --help), without their dashes`},
		{"engin:\n- x\n", `line 1: unknown key "engin" (did you mean "engine"?)`},
		{"listen: a\nlisten: b\n", `line 2: key "listen" is set twice, first in line 1`},
		{"listen:\n", `key "listen" has no value`},
		{"- listen\n", "line 1: want keys"},
		{"engine:\n- kind: weir\n  adress: x\n", `line 3: unknown key "adress"`},
		{"engine:\n- kind: weir\n", "needs url"},
		{"listen: {a: b}\n", `key "listen" does not take a mapping`},
		{"listen: [a\n", "that begins in line 1"},
		{"listen: !!str a\n", `line 1: key "listen" does not take a tag`},
		{"? [a]\n: b\n", "line 1: want a plain word as the key"},
		{"? " + strings.Repeat("x", 2000) + "\n: b\n", "line 1: the key is longer than 1024 bytes"},
		{"listen: a\n---\nlisten: b\n", "line 2: a second document"},
		{"listen: &x a\n", `line 1: key "listen" does not take an anchor`},
		{"listen: &x a\nmax-body: *x\n", `line 2: key "max-body" does not take an anchor or an alias`},
		{"engine:\n- url: u\n  name: [a, b]\n", `line 3: "name" takes one value, not 2`},
	} {
		_, problems := parse([]byte(c.file), flags)
		if err := errors.Join(problems...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q in it", c.file, err, c.want)
		}
	}
	// Each key that is wrong is told, and the others are read.
	f, problems := parse([]byte("listne: a\nmax-body: 5\nengine:\n- kind: weir\nfoo: 1\n"), flags)
	if len(problems) != 3 || len(f.Values) != 1 || f.Values["max-body"] == nil {
		t.Errorf("%v, %v", problems, f.Values)
	}
}

// An engine that is written as a mapping may have every option that its one line may.
func TestMappingsHaveEveryOption(t *testing.T) {
	for kind, all := range options {
		for _, option := range slices.Concat(all, halves[kind], nameOptions, shareOptions) {
			f, problems := parse(fmt.Appendf(nil, "engine: {kind: %s, url: u, %s: v}\n", kind, option), flags)
			if problems != nil || !strings.HasSuffix(f.Values["engine"][0], "u,"+option+"=v") {
				t.Errorf("%s, %s: %v %v", kind, option, problems, f.Values)
			}
		}
	}
}

func TestParseEngine(t *testing.T) {
	e, err := ParseEngine("openai=http://host:1234/base/v1/,model=m,name=n")
	if err != nil || e.URL.String() != "http://host:1234/base" || e.Model != "m" || e.Name != "n" {
		t.Fatalf("%+v, %v", e, err)
	}
	if e, err = ParseEngine("openai=host:1234"); err != nil || e.URL.String() != "http://host:1234" || e.Name != "host:1234" {
		t.Fatalf("%+v, %v", e, err)
	}
	for _, s := range []string{"http://host:1234/v1", "host:1234,name=host:1234", "auto=host:1234"} {
		if e, err = ParseEngine(s); err != nil || e.Kind != "auto" || e.URL.String() != "http://host:1234" || e.Name != "host:1234" {
			t.Fatalf("%s: %+v, %v", s, e, err)
		}
	}
	e, err = ParseEngine("https://h,key-file=k,ca=c,cert=p,cert-key=q,server-name=s")
	if err != nil || e.KeyFile != "k" || e.CA != "c" || e.Cert != "p" || e.CertKey != "q" || e.ServerName != "s" || e.TLS {
		t.Fatalf("%+v, %v", e, err)
	}
	if e, err = ParseEngine("weir=h:1,ca=c"); err != nil || !e.TLS {
		t.Fatalf("%+v, %v", e, err)
	}
	if e, err = ParseEngine("openai=h:1,pass-key=true,verify=ids"); err != nil || !e.PassKey || !e.VerifyIDs {
		t.Fatalf("%+v, %v", e, err)
	}
	if e, err = ParseEngine("vllm-core=tcp://127.0.0.1:5570,dp=2,priority=true,speculative=true"); err != nil || !e.Priority || !e.Speculative || e.Ranks != 2 {
		t.Fatalf("%+v, %v", e, err)
	}
	e, err = ParseEngine("weir=h:1,kv-events=tcp://h:5557,kv-replay=tcp://h:5558,kv-topic=kv")
	if err != nil || e.KVEvents != "tcp://h:5557" || e.KVReplay != "tcp://h:5558" || e.KVTopic != "kv" {
		t.Fatalf("%+v, %v", e, err)
	}
	if e, err = ParseEngine("vllm-core=tcp://127.0.0.1:5570,kv-events=off"); err != nil || e.KVEvents != "off" {
		t.Fatalf("%+v, %v", e, err)
	}
	e, err = ParseEngine("http://h:1,role=prefill,bootstrap_port=9000,bootstrap-host=b")
	if want := (Halves{Role: "prefill", Handover: "room", Host: "b", Port: 9000}); err != nil || e.Halves != want {
		t.Fatalf("%+v, %v", e, err)
	}
	e, err = ParseEngine("vllm-core=tcp://127.0.0.1:5570,role=prefill,handover=push,engine_id=P,side-channel=h:5600")
	if want := (Halves{Role: "prefill", Handover: "push", Host: "h", Port: 5600, EngineID: "P"}); err != nil || e.Halves != want {
		t.Fatalf("%+v, %v", e, err)
	}
	// An engine is asked what is not said.
	for s, want := range map[string]bool{
		"http://h:1": false, "http://h:1,role=both": false, "http://h:1,role=prefill": true, "http://h:1,role=decode": true, "vllm-core=tcp://127.0.0.1:5570,role=decode": true,
		"http://h:1,role=prefill,handover=pull": false, "http://h:1,role=prefill,bootstrap-port=1": false, "http://h:1,role=decode,handover=push": false,
		"http://h:1,role=prefill,handover=push": true, "http://h:1,role=prefill,handover=push,engine-id=P": true, "http://h:1,role=prefill,handover=push,engine-id=P,side-channel=h:1": false,
	} {
		if e, err = ParseEngine(s); err != nil || e.Halves.Ask() != want {
			t.Errorf("%s: asked %v, %v", s, e.Halves.Ask(), err)
		}
	}
	for s, want := range map[string]string{
		"openai=x,role=prefil":                                            "want both, prefill or decode",
		"openai=x,role=prefill,bootstrap-port=0":                          "1 to 65535",
		"openai=x,role=prefill,bootstrap-port=99999":                      "1 to 65535",
		"openai=x,role=decode,bootstrap-port=8998":                        "the prefill engine's to say",
		"openai=x,bootstrap-port=8998":                                    "the prefill engine's to say",
		"openai=x,role=prefill,handover=carry":                            "want room (SGLang), pull or push",
		"openai=x,handover=pull":                                          "goes with role=prefill or role=decode",
		"openai=x,role=prefill,handover=pull,bootstrap-port=1":            "SGLang's",
		"openai=x,role=prefill,engine-id=P":                               "go with handover=push",
		"openai=x,role=prefill,handover=push,engine-id=P,side-channel=h":  "want HOST:PORT",
		"openai=x,role=decode,handover=push,engine-id=P,side-channel=h:1": "the prefill engine's to say",
		"sglang=x,handover=room":                                          "unknown option",
		"weir=h:1,role=prefill":                                           "unknown option",
		"openai=x,kv-events=tcp://h:1":                                    "unknown option",
		"weir=h:1,kv-events=h:1":                                          "want tcp://HOST:PORT or ipc://PATH",
		"weir=h:1,kv-events=yes":                                          "want tcp://HOST:PORT or ipc://PATH",
		"weir=h:1,kv-replay=tcp://h:1":                                    "go with kv-events=",
		"weir=h:1,priority=true":                                          "unknown option",
		"vllm-core=tcp://127.0.0.1:1,priority=5":                          "true or false",
		"":                                                                "want URL or KIND=URL",
		"host":                                                            "want URL or KIND=URL",
		"http:":                                                           "want URL or KIND=URL",
		"ftp://x":                                                         "want http or https",
		"opnai=http://x":                                                  `did you mean "openai"?`,
		"weir=localhost":                                                  "want HOST:PORT",
		"http://x:99999":                                                  "the port is 99999; want 1 to 65535",
		"sglang=x:0":                                                      "the port is 0; want 1 to 65535",
		"weir=x:65536":                                                    "the port is 65536; want 1 to 65535",
		"vllm-core=tcp://127.0.0.1:65536":                                 "want tcp://HOST:PORT",
		"openai=ftp://x":                                                  "want http or https",
		"openai=http://x,modle=m":                                         `did you mean "model"?`,
		"openai=http://x,model":                                           "wants a value",
		"openai=http://x,ca=c":                                            "give an address with https://",
		"sglang=https://x,cert-key=c":                                     "which is missing",
		"openai=x,key-file=k,pass-key=true":                               "give one of them",
		"openai=x,pass-key=maybe":                                         "true or false",
		"sglang=x,pass-key=true":                                          "unknown option",
		"openai=x,verify=text":                                            "want verify=ids",
		"sglang-ipc=/x,key-file=k":                                        "unknown option",
		"openai=x,keyfile=k":                                              `did you mean "key-file"?`,
	} {
		if _, err := ParseEngine(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", s, err, want)
		}
	}
}

// Credentials in an address are refused, and no error quotes them.
func TestCredentialsInAnAddress(t *testing.T) {
	for _, s := range []string{
		"http://user:hush@h:1", "openai=http://hush@h", "sglang=user:hush@h:1", "weir=hush@h:1", "https://user:hu,sh@h",
		"openai=http://user:hush@h:bad", "openai=http://user:hush@[", "openai=http://us%zzhush@h", "weir=hush@h", "auto=hush@h,name=n",
	} {
		_, err := ParseEngine(s)
		if err == nil || strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "hu,sh") {
			t.Errorf("%s: %v", s, err)
		}
		if !strings.ContainsAny(s, ",[%") && !strings.HasSuffix(s, "bad") && !strings.Contains(err.Error(), "key-file=FILE") {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func TestParseModel(t *testing.T) {
	for s, want := range map[string]Model{
		"/a/b":                       {Name: "b", Dir: "/a/b"},
		"/a/b/":                      {Name: "b", Dir: "/a/b/"},
		"x/y=/a/b":                   {Name: "x/y", Dir: "/a/b"},
		"n=d,alias=p":                {Name: "n", Dir: "d", Aliases: []string{"p"}},
		"n=d,alias=p,alias=q":        {Name: "n", Dir: "d", Aliases: []string{"p", "q"}},
		"n=d,lora=a=/l/a,lora=b=c=d": {Name: "n", Dir: "d", LoRA: []LoRA{{"a", "/l/a"}, {"b", "c=d"}}},
		"m,max-tokens=9,max-n=2":     {Name: "m", MaxTokens: 9, MaxN: 2},
		"a/m=,max-n=2":               {Name: "a/m", MaxN: 2},
		"/a/m,max-n=2":               {Name: "m", Dir: "/a/m", MaxN: 2},
		"m,isolation=tenant":         {Name: "m", Isolation: new(tenancy.ByTenant)},
		"m,policy=random,max-n=2":    {Name: "m", Policy: "random", MaxN: 2},
		"n=d,policy=session":         {Name: "n", Dir: "d", Policy: "session"},
		"m,max-n=2,alias=p":          {Name: "m", Dir: "m", Bare: true, Aliases: []string{"p"}, MaxN: 2},
		"m,alias=p,lora=a=/l":        {Name: "m", Dir: "m", Aliases: []string{"p"}, LoRA: []LoRA{{"a", "/l"}}},
		"a/m=,alias=p,alias=q":       {Name: "a/m", Aliases: []string{"p", "q"}},
		"a/m,alias=p":                {Name: "m", Dir: "a/m", Aliases: []string{"p"}},
		"n=d,tool-parser=hermes,alias=p,reasoning-parser=none": {Name: "n", Dir: "d", Aliases: []string{"p"}, ToolParser: "hermes", ReasoningParser: "none"},
	} {
		got, err := ParseModel(s)
		if err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "n=", "=d", ".", "n=d,alias", "n=d,x=y", "n=d,tool-parser=", "n=d,lora=a", "n=d,lora==/l", "n=d,lora=a=", "m,max-n=0", "m,max-tokens=x", "n=,alias=", "n=,lora=a=/l", "=,alias=p", "=,max-n=1", "..,max-n=1", "m,isolation=on"} {
		if m, err := ParseModel(s); err == nil {
			t.Errorf("%q: accepted as %+v", s, m)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte("listen: a\nengine:\n- kind: weir\n  url: x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if file, err := parse(data, flags); err == nil && file == nil {
			t.Fatal("neither file nor error")
		}
	})
}

// A specification that is accepted has a name, no credentials, and the fields that its kind needs.
func FuzzSpecs(f *testing.F) {
	for _, s := range []string{"http://127.0.0.1:30000", "openai=https://h/v1,model=m,key-file=k,ca=c,pass-key=false", "weir=h:1,tls=true", "vllm-core=tcp://h:1,dp=4,lockstep=true",
		"sglang-ipc=/run/x,untried=true", "sglang=http://u:p@h", "llama=/models/llama,alias=a,lora=x=/y,tool-parser=t", "weir-sim"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if e, err := ParseEngine(s); err == nil {
			if e.Name == "" || !slices.Contains(kinds, e.Kind) || e.URL != nil && (e.URL.User != nil || e.URL.Host == "") || e.Kind == "weir" && e.Addr == "" {
				t.Fatalf("%q is %+v", s, e)
			}
		}
		if m, err := ParseModel(s); err == nil && (m.Name == "" || m.Dir == "") {
			t.Fatalf("%q is %+v", s, m)
		}
	})
}
