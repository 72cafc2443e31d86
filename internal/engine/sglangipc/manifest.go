package sglangipc

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tinylib/msgp/msgp"

	"weir/internal/disk"
	"weir/internal/engine"
	"weir/internal/engine/sglang"
	"weir/internal/engine/sglangserver"
	"weir/internal/infer"
)

// ManifestName is the file in which a launcher describes the schedulers that it started.
const ManifestName = "engine.json"

// manifestVersion is the version of that file's format.
const manifestVersion = 1

// manifest describes the schedulers that the launcher has started.
type manifest struct {
	Form     int    `json:"form"`
	Version  string `json:"sglang"`
	Instance string `json:"instance"` // changes with each start

	Served        string            `json:"served_model_name"`
	ContextLength int               `json:"context_length"`
	MaxInput      int               `json:"max_req_input_len"` // prompts are shorter
	Vocab         int               `json:"vocab_size"`
	Ranks         int               `json:"dp_size"`
	LoRA          map[string]string `json:"lora"` // ids by name
	Priorities    bool              `json:"enable_priority_scheduling"`
	Started       sglangserver.Mode `json:"started"` // of the schedulers' arguments
	// BootstrapHost is where the registry is that the launcher of a prefill engine has
	// started, at the port that the arguments say.
	BootstrapHost string `json:"bootstrap_host"`

	// Loads is the file in which the schedulers say how busy they are; empty: there is none.
	Loads string `json:"loads"`

	// Events is where rank 0 publishes what its KV cache holds.
	Events *struct {
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
		Topic     string `json:"topic"`
	} `json:"kv_events"`

	// Wire are the structures of the wire by name.
	Wire map[string]structure `json:"wire"`

	lacks []infer.Lack // by how they were started
}

// structure is one, as its release has it.
type structure struct {
	Fields []string `json:"fields"` // in their order, without the tag
	Sample []byte   `json:"sample"` // one as the release encodes it; base64
}

func readManifest(dir string) (b []byte, err error) {
	return disk.Read(filepath.Join(dir, ManifestName), disk.MaxSettings)
}

// parseManifest reads the launcher's manifest. Members that it does not know are passed over.
func parseManifest(b []byte) (*manifest, *codec, error) {
	h := &manifest{}
	if err := json.Unmarshal(b, h, jsontext.AllowDuplicateNames(false)); err != nil {
		return nil, nil, fmt.Errorf("%s cannot be read: %w", ManifestName, err)
	}
	var missing []string
	for name, ok := range map[string]bool{"sglang": h.Version != "", "instance": h.Instance != "", "context_length": h.ContextLength > 0,
		"max_req_input_len": h.MaxInput > 0, "vocab_size": h.Vocab > 0, "dp_size": h.Ranks > 0} {
		if !ok {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	switch {
	case h.Form != manifestVersion:
		return nil, nil, fmt.Errorf("%s has version %d, and this weir reads version %d: use the launcher that came with this weir", ManifestName, h.Form, manifestVersion)
	case len(missing) > 0:
		return nil, nil, fmt.Errorf("%s does not say %s", ManifestName, strings.Join(missing, ", "))
	}
	h.Started.Version, h.Started.Ranks = h.Version, h.Ranks
	if err := h.Started.Fault(); err != nil {
		return nil, nil, fmt.Errorf("SGLang %s %w", h.Version, err)
	}
	h.lacks = h.Started.Lacks()
	c, err := newCodec(h.Wire)
	if err != nil {
		return nil, nil, fmt.Errorf("SGLang %s: %w", h.Version, err)
	}
	c.mode = &h.Started
	return h, c, nil
}

// kvEvents is where the scheduler of rank 0 publishes what its KV cache holds. It runs on
// this machine.
func (h *manifest) kvEvents() (e engine.KVEvents) {
	if h.Events == nil || h.Events.Publisher != "zmq" || h.Events.Endpoint == "" {
		return e
	}
	e = engine.KVEvents{Endpoint: h.Events.Endpoint, Replay: h.Events.Replay, Topic: h.Events.Topic, Host: "127.0.0.1"}
	if len(h.LoRA) > 0 && !h.Started.TellsAdapters() {
		e.Why = sglang.AdaptersUntold
	}
	return e
}

// carries is what the engine takes beyond what every engine does.
func (h *manifest) carries() infer.Carries {
	c := sglang.Carries
	if h.Priorities {
		c |= infer.CarriesPriority
	}
	return c.Without(h.lacks)
}

// additions are what SGLang's own front end would add by the model's folder. A manifest of
// an older launcher does not say how it was started, and the release's default holds.
func (h *manifest) additions(o *Options) engine.Additions {
	a := engine.Additions{EndIDs: o.EndIDs, Defaults: o.Defaults}
	if h.Started.Known() {
		except, ok := h.Started.FromModel()
		if a.Defaults = a.Defaults.Without(except); !ok {
			a.Defaults = engine.Defaults{}
		}
	}
	return a
}

// version is a release of SGLang.
type version [3]int

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// oldest and newest are the releases between which the wire was tried
// (docs/engines.md).
var (
	oldest = version{0, 5, 17}
	newest = version{0, 5, 23}
)

// parseVersion reads "0.5.23", and of "0.5.24.dev7+g0123" or "0.5.12.post1" the first
// three numbers and that there is more.
func parseVersion(s string) (v version, more, ok bool) {
	parts := strings.Split(s, ".")
	if len(parts) < 3 {
		return v, false, false
	}
	for i := range v {
		n, err := strconv.Atoi(parts[i])
		if err != nil || n < 0 {
			return v, false, false
		}
		v[i] = n
	}
	return v, len(parts) > 3, true
}

// judge reports whether an engine of this version is supported. The wire is not a
// public interface, and a release may change the meaning of a field.
func (h *manifest) judge(untried bool) (warning string, err error) {
	v, more, ok := parseVersion(h.Version)
	if ok && slices.Compare(v[:], oldest[:]) >= 0 && (slices.Compare(v[:], newest[:]) < 0 || v == newest && !more) {
		return "", nil
	}
	known := fmt.Sprintf("SGLang %s was not tried; %v to %v were", h.Version, oldest, newest)
	if untried {
		return known, nil
	}
	return "", errors.New(known + ". Its structures can be read: add untried=true to the engine to use it all the same")
}

// chunk is one value of a sample, as it was encoded.
type chunk struct {
	field string
	raw   []byte
}

// split takes a sample apart. tag is the first value; an untagged structure has
// none.
func (s structure) split(name, tag string) (head []byte, chunks []chunk, err error) {
	b := s.Sample
	if msgp.NextType(b) == msgp.MapType {
		return nil, nil, fmt.Errorf("%s is written as a map, as before SGLang %v", name, oldest)
	}
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return nil, nil, fmt.Errorf("the sample of %s: %w", name, err)
	}
	want := len(s.Fields)
	if tag != "" {
		want++
	}
	if int(n) != want {
		return nil, nil, fmt.Errorf("the sample of %s has %d values for %d fields", name, n, want)
	}
	if tag != "" {
		var got []byte
		if got, b, err = msgp.ReadStringZC(b); err != nil || string(got) != tag {
			return nil, nil, fmt.Errorf("the sample of %s begins with %q (%v)", name, got, err)
		}
	}
	head = s.Sample[:len(s.Sample)-len(b)]
	for _, field := range s.Fields {
		rest, err := skip(b)
		if err != nil {
			return nil, nil, fmt.Errorf("the sample of %s, %s: %w", name, field, err)
		}
		chunks = append(chunks, chunk{field, b[:len(b)-len(rest)]})
		b = rest
	}
	if len(b) > 0 {
		return nil, nil, fmt.Errorf("the sample of %s has %d bytes after its end", name, len(b))
	}
	return head, chunks, nil
}
