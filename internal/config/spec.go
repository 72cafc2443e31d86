// Package config reads an operator's input: the specifications of engines and models, and
// the configuration file, whose keys are the names of the flags.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"weir/internal/infer/spell"
	"weir/internal/tenancy"
)

// Engine is one --engine [KIND=]URL[,model=NAME][,name=NAME][,OPTION=VALUE]...;
// without a kind it is auto.
type Engine struct {
	Kind  string
	URL   *url.URL // of an auto, openai, sglang or vllm engine
	Addr  string   // host:port of a weir engine, or where vllm-core engines dial in
	Dir   string   // of sglang-ipc: the folder of the sockets
	Model string   // the name to serve it under; empty: its own names
	Name  string   // in metrics and records; defaults to host:port
	// For vllm-core: the data-parallel ranks, and whether they step together.
	Ranks    int
	Lockstep bool
	// For vllm-core and vllm: they schedule by priority.
	Priority bool
	// Speculative reports whether they decode speculatively.
	Speculative bool
	// For sglang-ipc: untested releases are accepted too.
	Untried bool
	// For engines that weir connects to over HTTP or gRPC: the files of the key that they
	// ask for, of their certificate authorities, and of weir's own certificate with its
	// key; and the name that their certificate must be for.
	KeyFile, CA, Cert, CertKey, ServerName string
	// PassKey hands the callers' own credentials on (auto, openai).
	PassKey bool
	// VerifyIDs has streams verified by their ids (auto, openai).
	VerifyIDs bool
	// KVEvents is the address at which the engine publishes the content of its KV cache,
	// KVReplay the address for missed events, and KVTopic the topic to read. Empty means
	// what the engine reports, and KVEvents "off" none. Not for openai.
	KVEvents, KVReplay, KVTopic string
	// TLS reports whether a weir engine is spoken to over TLS.
	TLS bool
	// MaxRunning is the most requests that the engine gets at the same time; 0 is the
	// engine's own limit.
	MaxRunning int
	// Halves is its part where prefill and decode run on two engines.
	Halves Halves
	// Weight is the share of its models' requests that it may be given, above 0 and up to 1; 0
	// is all.
	Weight float64
	// Resolve states that each address of the host is an engine: each, or each+loopback,
	// which includes addresses of this machine. Empty: it is one engine.
	Resolve string
}

// The values of Resolve.
const (
	each           = "each"
	eachOrLoopback = "each+loopback"
)

var kinds = []string{"auto", "openai", "sglang", "sglang-ipc", "vllm", "vllm-core", "weir"}

// ParseEngine reads an engine's specification.
func ParseEngine(s string) (Engine, error) {
	head, rest, more := strings.Cut(s, ",")
	kind, target, ok := strings.Cut(head, "=")
	if address(head) {
		kind, target, ok = "auto", head, true
	}
	if !ok || target == "" {
		return Engine{}, fmt.Errorf("engine %q: want URL or KIND=URL, for example http://127.0.0.1:30000, openai=http://127.0.0.1:30000 or weir=127.0.0.1:9000", s)
	}
	e := Engine{Kind: kind}
	var err error
	switch kind {
	case "auto", "openai", "sglang", "vllm":
		err = e.parseURL(target)
	case "weir":
		e.Addr = target
		if strings.Contains(target, "@") {
			err = errCredentials
		} else if _, port, splitErr := net.SplitHostPort(target); splitErr != nil {
			err = fmt.Errorf("want HOST:PORT after weir=, got %q", target)
		} else {
			err = checkPort(port)
		}
		e.Name = target
	case "vllm-core":
		err = e.parseHandshake(target)
	case "sglang-ipc":
		err = e.parseDir(target)
	default:
		err = fmt.Errorf("unknown kind %q%s; the kinds are %s", kind, suggest(kind, kinds), strings.Join(kinds, ", "))
	}
	if err != nil {
		return Engine{}, fmt.Errorf("engine %q: %w", withoutCredentials(s), err)
	}
	if !more {
		return e, nil
	}
	var keys []string
	for option := range strings.SplitSeq(rest, ",") {
		key, value, ok := strings.Cut(option, "=")
		key = strings.ReplaceAll(key, "_", "-") // as engines write some
		keys = append(keys, key)
		switch {
		case !ok || value == "":
			return Engine{}, fmt.Errorf("engine %q: option %q wants a value, as in model=NAME", s, option)
		case key == "model":
			e.Model = value
		case key == "name":
			e.Name = value
		case key == "max-running":
			if e.MaxRunning, err = strconv.Atoi(value); err != nil || e.MaxRunning < 1 || e.MaxRunning > math.MaxInt32 {
				return Engine{}, fmt.Errorf("engine %q: max-running=%s: want the most requests that it is given at once, from 1", withoutCredentials(s), value)
			}
		case key == "weight":
			if e.Weight, err = ParseWeight(value); err != nil {
				return Engine{}, fmt.Errorf("engine %q: weight=%s: %w", withoutCredentials(s), value, err)
			}
		case key == "resolve" && slices.Contains(options[kind], key):
			if e.Resolve = value; value != each && value != eachOrLoopback {
				return Engine{}, fmt.Errorf("engine %q: resolve=%s: want %s, an engine at each address of the host, or %s", withoutCredentials(s), value, each, eachOrLoopback)
			}
		case key == "dp" && kind == "vllm-core":
			if e.Ranks, err = strconv.Atoi(value); err != nil || e.Ranks < 1 || e.Ranks > 1024 {
				return Engine{}, fmt.Errorf("engine %q: dp=%s: want the number of data-parallel ranks, 1 to 1024", s, value)
			}
		case key == "lockstep" && kind == "vllm-core":
			if e.Lockstep, err = strconv.ParseBool(value); err != nil {
				return Engine{}, fmt.Errorf("engine %q: lockstep=%s: want true or false", s, value)
			}
		case key == "priority" && (kind == "vllm-core" || kind == "vllm"):
			if e.Priority, err = strconv.ParseBool(value); err != nil {
				return Engine{}, fmt.Errorf("engine %q: priority=%s: want true or false", s, value)
			}
		case key == "speculative" && kind == "vllm-core":
			if e.Speculative, err = strconv.ParseBool(value); err != nil {
				return Engine{}, fmt.Errorf("engine %q: speculative=%s: want true or false", s, value)
			}
		case key == "untried" && kind == "sglang-ipc":
			if e.Untried, err = strconv.ParseBool(value); err != nil {
				return Engine{}, fmt.Errorf("engine %q: untried=%s: want true or false", s, value)
			}
		default:
			known := EngineOptions(kind)
			switch {
			case slices.Contains(halves[kind], key):
				err = e.Halves.option(key, value)
			case slices.Contains(known, key):
				err = e.accessOption(key, value)
			default:
				err = fmt.Errorf("unknown option %q%s; the options are %s", key, suggest(key, known), strings.Join(known, ", "))
			}
			if err != nil {
				return Engine{}, fmt.Errorf("engine %q: %w", s, err)
			}
		}
	}
	if err := cmp.Or(e.checkAccess(), e.Halves.check(keys)); err != nil {
		return Engine{}, fmt.Errorf("engine %q: %w", s, err)
	}
	return e, nil
}

// ParseWeight reads the share of its models' requests that an engine may be given.
func ParseWeight(s string) (float64, error) {
	w, err := strconv.ParseFloat(s, 64)
	if err != nil || !(w > 0 && w <= 1) {
		return 0, errors.New("want a share of the requests, above 0 and up to 1; to give it none, drain it")
	}
	return w, nil
}

// access lists the options for credentials.
var access = []string{"key-file", "ca", "cert", "cert-key", "server-name"}

// The options of all kinds, and those of kinds whose prompts are tokenized by weir.
var (
	nameOptions  = []string{"model", "name"}
	shareOptions = []string{"max-running", "weight"}
	eventOptions = []string{"kv-events", "kv-replay", "kv-topic"}
)

// options are those of each kind, beyond these.
var options = map[string][]string{
	"auto":       append([]string{"pass-key", "verify", "resolve"}, access...),
	"openai":     append([]string{"pass-key", "verify", "resolve"}, access...),
	"sglang":     append([]string{"resolve"}, access...),
	"weir":       append([]string{"tls", "resolve"}, access...),
	"vllm":       append([]string{"priority", "resolve"}, access...),
	"vllm-core":  {"dp", "lockstep", "priority", "speculative"},
	"sglang-ipc": {"untried"},
}

// Kinds returns the kinds of engines that can be given.
func Kinds() []string { return slices.Clone(kinds) }

// EngineOptions returns the options of an engine of the kind.
func EngineOptions(kind string) []string {
	all := slices.Concat(nameOptions, options[kind], shareOptions, halves[kind])
	if kind != "openai" { // whose prompts have no ids here
		all = append(all, eventOptions...)
	}
	return all
}

// modelOptions are the options of a model.
var modelOptions = []string{"alias", "lora", "tool-parser", "reasoning-parser", "max-tokens", "max-n", "policy", "isolation"}

// ModelOptions returns the options of a model.
func ModelOptions() []string { return slices.Clone(modelOptions) }

// endpoint checks that a value is a ZeroMQ endpoint. Its host may be left to the engine.
func endpoint(key, value string) error {
	address, tcp := strings.CutPrefix(value, "tcp://")
	if _, port, err := net.SplitHostPort(address); tcp && err == nil && port != "" {
		return nil
	}
	if path, ipc := strings.CutPrefix(value, "ipc://"); ipc && path != "" {
		return nil
	}
	return fmt.Errorf("%s=%s: want tcp://HOST:PORT or ipc://PATH, where the engine publishes", key, value)
}

// accessOption reads one of these options.
func (e *Engine) accessOption(key, value string) (err error) {
	switch key {
	case "key-file":
		e.KeyFile = value
	case "ca":
		e.CA = value
	case "cert":
		e.Cert = value
	case "cert-key":
		e.CertKey = value
	case "server-name":
		e.ServerName = value
	case "pass-key":
		e.PassKey, err = strconv.ParseBool(value)
	case "kv-events":
		if e.KVEvents = value; value != "off" {
			return endpoint(key, value)
		}
	case "kv-replay":
		e.KVReplay = value
		return endpoint(key, value)
	case "kv-topic":
		e.KVTopic = value
	case "tls":
		e.TLS, err = strconv.ParseBool(value)
	case "verify":
		if e.VerifyIDs = value == "ids"; !e.VerifyIDs {
			return fmt.Errorf("verify=%s: want verify=ids", value)
		}
	}
	if err != nil {
		return fmt.Errorf("%s=%s: want true or false", key, value)
	}
	return nil
}

// checkAccess refuses options that contradict each other.
func (e *Engine) checkAccess() error {
	secured := e.CA != "" || e.Cert != "" || e.ServerName != ""
	switch {
	case e.KVEvents == "" && (e.KVReplay != "" || e.KVTopic != ""):
		return fmt.Errorf("kv-replay= and kv-topic= go with kv-events=, which is missing")
	case e.CertKey != "" && e.Cert == "":
		return fmt.Errorf("cert-key= is the key of the certificate in cert=FILE, which is missing")
	case e.KeyFile != "" && e.PassKey:
		return fmt.Errorf("key-file= shows weir's own key, pass-key= those of the callers; give one of them")
	case e.URL != nil && e.URL.Scheme != "https" && secured:
		return fmt.Errorf("ca=, cert= and server-name= are for TLS; give an address with https://")
	}
	e.TLS = e.TLS || secured && e.URL == nil
	return nil
}

// address reports whether an engine's specification is an address without a kind.
func address(s string) bool {
	if before, _, ok := strings.Cut(s, "://"); ok {
		return !strings.Contains(before, "=")
	}
	_, port, err := net.SplitHostPort(s)
	return err == nil && port != "" && !strings.Contains(s, "=")
}

// parseHandshake reads where engine cores dial in.
func (e *Engine) parseHandshake(s string) error {
	addr, ok := strings.CutPrefix(s, "tcp://")
	host, port, err := net.SplitHostPort(addr)
	if err == nil {
		err = checkPort(port)
	}
	if !ok || err != nil || port == "" {
		return fmt.Errorf("want tcp://HOST:PORT after vllm-core=, where engines started with --data-parallel-address HOST --data-parallel-rpc-port PORT dial in, got %q", s)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%q: give an address under which the engines can reach this machine, or 127.0.0.1 for engines on this machine", s)
	}
	e.Addr, e.Name, e.Ranks = addr, addr, 1
	return nil
}

// maxSocketDir is the longest folder name for sockets: a socket's address has limited
// length.
const maxSocketDir = 100

// parseDir reads the folder of a scheduler's sockets.
func (e *Engine) parseDir(s string) error {
	dir, err := filepath.Abs(s)
	if err != nil || strings.Contains(s, "://") {
		return fmt.Errorf("want a folder after sglang-ipc=, the one that the launcher is given with --weir, got %q", s)
	}
	if len(dir) > maxSocketDir {
		return fmt.Errorf("%s: the path is longer than the %d bytes that a socket's address has room for", dir, maxSocketDir)
	}
	e.Dir, e.Name = dir, filepath.Base(dir)
	return nil
}

func (e *Engine) parseURL(s string) error {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		if inner, ok := errors.AsType[*url.Error](err); ok {
			err = inner.Err // the URL may hold what is not to be quoted
		}
		return err
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("the URL's scheme is %q; want http or https", u.Scheme)
	case u.Host == "":
		return fmt.Errorf("the URL has no host")
	case u.Port() != "" && checkPort(u.Port()) != nil:
		return checkPort(u.Port())
	case u.User != nil:
		return errCredentials
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("the URL must end with its path")
	}
	// Clients' base URLs end in /v1; the paths relayed begin with it.
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	e.URL, e.Name = u, u.Host
	return nil
}

// checkPort refuses a number that no port has. Without it, weir would try to connect for ever.
func checkPort(port string) error {
	if n, err := strconv.Atoi(port); err == nil && (n < 1 || n > math.MaxUint16) {
		return fmt.Errorf("the port is %s; want 1 to 65535", port)
	}
	return nil
}

var errCredentials = errors.New("the URL holds credentials, which everybody reads who lists processes; put the key that the engine asks for into a file and name it with key-file=FILE")

// withoutCredentials takes what stands before an @ out of a specification's address,
// for an error that quotes it.
func withoutCredentials(s string) string {
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return s
	}
	from := strings.IndexByte(s[:at], '=') + 1
	if i := strings.Index(s[:at], "://"); i >= 0 {
		from = i + len("://")
	}
	return s[:from] + "..." + s[at:]
}

// Model is one --model
// [NAME=]DIR[,alias=NAME]...[,lora=NAME=PATH]...[,tool-parser=NAME][,reasoning-parser=NAME][,max-tokens=N][,max-n=N][,policy=NAME][,isolation=WHOSE],
// or NAME= with alias and the last four alone, which has no Dir; a NAME without a slash
// needs no =.
type Model struct {
	Name    string
	Dir     string
	Aliases []string
	// Bare reports whether Dir is a name without a slash, without settings that need a
	// folder. If there is no such folder, the model has none here.
	Bare bool
	// LoRA lists the adapters that engines are asked to load, in the given order.
	LoRA []LoRA
	// ToolParser and ReasoningParser name the syntaxes in which the model calls tools and
	// reasons; empty means what its folder defines.
	ToolParser, ReasoningParser string
	// MaxTokens and MaxN bound what may be asked of the model; 0 is no bound.
	MaxTokens, MaxN int
	// Policy is the way in which its engines are chosen; empty is the policy of all models.
	Policy string
	// Isolation states whose requests share the engines' caches; nil: as for all models.
	Isolation *tenancy.Isolation
}

// LoRA is an adapter: the name that it is served as, and where engines find it.
type LoRA struct{ Name, Path string }

// ParseModel reads a model's specification. Without a name, the folder's name
// is the model's.
func ParseModel(s string) (Model, error) {
	head, rest, more := strings.Cut(s, ",")
	name, dir, named := strings.Cut(head, "=")
	if !named {
		dir = name
		trimmed := strings.TrimRight(dir, "/")
		name = trimmed[strings.LastIndexByte(trimmed, '/')+1:]
	}
	bare := false
	switch only, aliased := nameOnly(rest); {
	case more && only && named && dir == "": // the name of a model, whose engines have its folder
	case more && only && !named && !strings.Contains(dir, "/"):
		if bare = aliased; !bare {
			dir = ""
		}
	case dir == "":
		name = ""
	}
	if name == "" || name == "." || name == ".." {
		return Model{}, fmt.Errorf("model %q: want NAME=DIR, where DIR is a model folder with a tokenizer.json", s)
	}
	m := Model{Name: name, Dir: dir, Bare: bare}
	if !more {
		return m, nil
	}
	for option := range strings.SplitSeq(rest, ",") {
		key, value, _ := strings.Cut(option, "=")
		switch {
		case value == "":
			return Model{}, badModelOption(s, option)
		case key == "alias":
			m.Aliases = append(m.Aliases, value)
		case key == "lora":
			name, path, _ := strings.Cut(value, "=")
			if name == "" || path == "" {
				return Model{}, fmt.Errorf("model %q: lora=%s: want lora=NAME=PATH, the name to serve the adapter as and where engines find it", s, value)
			}
			m.LoRA = append(m.LoRA, LoRA{name, path})
		case key == "tool-parser":
			m.ToolParser = value
		case key == "reasoning-parser":
			m.ReasoningParser = value
		case key == "policy":
			m.Policy = value
		case key == "isolation":
			is, err := tenancy.ParseIsolation(value)
			if err != nil {
				return Model{}, fmt.Errorf("model %q: isolation=%s: %w", s, value, err)
			}
			m.Isolation = &is
		case key == "max-tokens", key == "max-n":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > math.MaxInt32 {
				return Model{}, fmt.Errorf("model %q: %s=%s: want a number from 1", s, key, value)
			}
			if key == "max-n" {
				m.MaxN = n
			} else {
				m.MaxTokens = n
			}
		default:
			return Model{}, badModelOption(s, option)
		}
	}
	return m, nil
}

// nameOnly reports whether the options need only a model's name, and whether an alias is
// among them.
func nameOnly(options string) (only, aliased bool) {
	for option := range strings.SplitSeq(options, ",") {
		switch key, _, _ := strings.Cut(option, "="); key {
		case "max-tokens", "max-n", "policy", "isolation":
		case "alias":
			aliased = true
		default:
			return false, false
		}
	}
	return true, aliased
}

func badModelOption(s, option string) error {
	return fmt.Errorf("model %q: unknown option %q; the options are alias=NAME, lora=NAME=PATH, tool-parser=NAME, reasoning-parser=NAME, max-tokens=N, max-n=N, policy=NAME and isolation=WHOSE", s, option)
}

// Unique adds numbers to the names of n engines where several share one, in their order. name
// returns that of an engine, and rename changes it.
func Unique(n int, name func(i int) string, rename func(i int, to string)) {
	count := make(map[string]int, n)
	for i := range n {
		count[name(i)]++
	}
	if len(count) == n {
		return
	}
	next := map[string]int{}
	for i := range n {
		if name := name(i); count[name] > 1 {
			next[name]++
			rename(i, name+"#"+strconv.Itoa(next[name]))
		}
	}
}

// suggest names the known word nearest to a mistyped one, as a phrase to put
// behind it, or nothing when none is near.
func suggest(word string, known []string) string {
	best := spell.Nearest(word, known, len(word)/2)
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}
