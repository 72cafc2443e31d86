package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"weir/internal/config"
	"weir/internal/disk"
	"weir/internal/engine/vllmcore"
	"weir/internal/fleet"
	"weir/internal/gateway"
	"weir/internal/model"
	"weir/internal/wire/zmtp"
)

// frontendCommand is weir in the place of vLLM's front end. vLLM starts it with its own
// arguments, which differ between releases. Other settings come from the environment.
type frontendCommand struct {
	gatewayFlags
	ListenFD         int    `group:"Set by vLLM:" name:"listen-fd" required:"" env:"-" placeholder:"FD" help:"Socket of the API, already bound."`
	InputListenerFD  int    `group:"Set by vLLM:" name:"input-listener-fd" default:"-1" env:"-" placeholder:"FD" help:"Socket from which engines read requests, already bound (vLLM 0.33)."`
	OutputListenerFD int    `group:"Set by vLLM:" name:"output-listener-fd" default:"-1" env:"-" placeholder:"FD" help:"Socket to which engines write output, already bound (vLLM 0.33)."`
	InputAddress     string `group:"Set by vLLM:" env:"-" placeholder:"ADDR" help:"The same as --input-listener-fd, as an address to bind (vLLM 0.24 to 0.28)."`
	OutputAddress    string `group:"Set by vLLM:" env:"-" placeholder:"ADDR" help:"The same as --output-listener-fd, as an address to bind (vLLM 0.24 to 0.28)."`
	EngineStartIndex int    `group:"Set by vLLM:" env:"-" placeholder:"N" help:"Index of the first engine."`
	EngineCount      int    `group:"Set by vLLM:" default:"1" env:"-" placeholder:"N" help:"Number of engines (${default})."`
	DataParallelSize int    `group:"Set by vLLM:" default:"1" env:"-" placeholder:"N" help:"Number of engines in their data-parallel group (${default})."`

	CoordinatorAddress string `group:"Set by vLLM:" env:"-" placeholder:"ADDR" help:"Address of vLLM's coordinator of data-parallel ranks."`
	GRPCListenFD       int    `name:"grpc-listen-fd" default:"-1" env:"-" hidden:""`
	ArgsJSON           string `group:"Set by vLLM:" name:"args-json" required:"" env:"-" placeholder:"JSON" help:"Arguments of vllm serve."`
}

// Help implements kong's extended help.
func (frontendCommand) Help() string {
	return `vLLM does so when it is started with

  VLLM_USE_RUST_FRONTEND=1 VLLM_RUST_FRONTEND_PATH=$(which weir) vllm serve MODEL

Set weir's own flags by environment variables in this case, such as WEIR_ADMIN_LISTEN and WEIR_TIMELINE.`
}

// Run implements the command.
func (c *frontendCommand) Run(k *kong.Context, s *streams) error {
	args, err := parseServeArgs(c.ArgsJSON)
	if err != nil {
		return err
	}
	if c.GRPCListenFD >= 0 {
		return wrongf("--grpc-port of vllm serve: weir has no gRPC front end; leave it out")
	}
	c.settings = flagsOf(k)
	if len(c.Peers) > 0 {
		return wrongf("--peers: vLLM's engine cores have one front end, so several gateways cannot share them")
	}
	opts, err := c.options()
	if err != nil {
		return err
	}
	signals := s.signals()
	defer signals.stop()
	dir, err := args.folder()
	if err != nil {
		return err
	}
	m := &servedModel{Model: config.Model{Dir: dir}}
	m.Name, m.Aliases = args.names()
	if m.LoRA, err = args.lora(); err != nil {
		return err
	}
	if m.folder, err = unlessStopped(signals.stopping, 0, func() (*model.Folder, error) { return model.Load(disk.Folder(dir)) }); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	api, err := inherited("--listen-fd", c.ListenFD)
	if err != nil {
		return err
	}
	connect := func(o *gateway.Options) ([]fleet.Member, error) {
		core, err := c.core(m, args, o)
		if err != nil {
			return nil, err
		}
		return []fleet.Member{{Name: coreName, Kind: "vllm-core", Model: m.Name, LoRA: slices.Sorted(maps.Keys(m.adapters())), Adapter: core}}, nil
	}
	p, err := unlessStopped(signals.stopping, 0, func() (*process, error) {
		return assemble(&c.gatewayFlags, opts, connect, servedModels{m.Name: m}, s, api)
	})
	if err != nil {
		return errors.Join(err, api.Close())
	}
	p.announce("")
	return p.serve(signals)
}

// coreName is the name of the engines that vLLM starts, in metrics and records.
const coreName = "vllm"

// core makes the adapter to the engines that vLLM starts.
func (c *frontendCommand) core(m *servedModel, args *serveArgs, g *gateway.Options) (*vllmcore.Engine, error) {
	o := vllmcore.Options{
		Options: coreOptions(coreName, m.Name, g), EndIDs: m.folder.EndIDs(), Vocab: m.folder.VocabSize, LoRA: m.adapters(), Priorities: args.Policy == "priority", Speculative: len(args.Drafts) > 0 && string(args.Drafts) != "null", First: c.EngineStartIndex, Engines: c.EngineCount,
		Coordinated: c.CoordinatorAddress != "" && c.DataParallelSize > 1,
	}
	var err error
	if o.Defaults, err = samplingDefaults(m.folder.Files); err != nil {
		return nil, err
	}
	switch {
	case c.InputListenerFD >= 0 && c.OutputListenerFD >= 0:
		if o.InputListener, err = inherited("--input-listener-fd", c.InputListenerFD); err != nil {
			return nil, err
		}
		o.OutputListener, err = inherited("--output-listener-fd", c.OutputListenerFD)
	case c.InputAddress != "" && c.OutputAddress != "":
		if o.InputListener, err = bound("--input-address", c.InputAddress); err != nil {
			return nil, err
		}
		o.OutputListener, err = bound("--output-address", c.OutputAddress)
	default:
		return nil, wrongf("no address for engines: want --input-listener-fd and --output-listener-fd, or --input-address and --output-address, as vLLM 0.24 to 0.33 set them")
	}
	if err != nil {
		return nil, err
	}
	return vllmcore.New(o), nil
}

// inherited takes over a socket that the parent process has bound.
func inherited(flag string, fd int) (net.Listener, error) {
	f := os.NewFile(uintptr(fd), flag)
	if f == nil {
		return nil, wrongf("%s %d: no such file descriptor", flag, fd)
	}
	defer f.Close()
	// vLLM binds the API's socket and leaves it to its front end to listen.
	if err := unix.Listen(fd, 4096); err != nil {
		return nil, fmt.Errorf("%s %d: %w", flag, fd, err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("%s %d: %w", flag, fd, err)
	}
	return l, nil
}

func bound(flag, address string) (net.Listener, error) {
	at, err := zmtp.ParseEndpoint(address)
	if err != nil {
		return nil, wrongf("%s: %w", flag, err)
	}
	l, err := zmtp.Listen(at)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, address, err)
	}
	return l, nil
}

// serveArgs holds the arguments of vllm serve that differ from their defaults.
type serveArgs struct {
	Model     string          `json:"model_tag"`
	Served    json.RawMessage `json:"served_model_name"`
	Tokenizer string          `json:"tokenizer"`
	Revision  string          `json:"revision"`
	LoRA      []loraModule    `json:"lora_modules"`
	Policy    string          `json:"scheduling_policy"`
	Drafts    json.RawMessage `json:"speculative_config"`
	served    []string
}

// loraModule is an adapter of --lora-modules.
type loraModule struct {
	Name   string `json:"name"`
	Path   string `json:"path"`
	Base   string `json:"base_model_name"` // what the list of models calls its parent
	Fused3 bool   `json:"is_3d_lora_weight"`
}

// refusedArgs are settings of vllm serve that change what its own front end answers,
// or whom, and that weir does not have under that name. The others are the engine's,
// or have no effect on answers.
var refusedArgs = map[string]string{
	"allow_credentials":                   "",
	"allowed_headers":                     "",
	"allowed_methods":                     "",
	"allowed_origins":                     "",
	"api_key":                             "",
	"chat_template":                       "put the template into the model's folder as chat_template.jinja",
	"chat_template_content_format":        "",
	"default_chat_template_kwargs":        "",
	"enable_auto_tool_choice":             "",
	"enable_force_include_usage":          "",
	"enable_per_request_metrics":          "",
	"enable_prompt_embeds":                "",
	"enable_scale_out":                    "",
	"enable_server_load_tracking":         "",
	"enable_tokenizer_info_endpoint":      "",
	"exclude_tools_when_tool_choice_none": "",
	"generation_config":                   "put generation_config.json into the model's folder",
	"grpc_port":                           "",
	"middleware":                          "",
	"override_generation_config":          "put the values into the model's generation_config.json",
	"reasoning_effort_map":                "",
	"reasoning_parser":                    "",
	"response_role":                       "",
	"return_tokens_as_token_ids":          "",
	"root_path":                           "",
	"runner":                              "",
	"skip_tokenizer_init":                 "",
	"sse_keep_alive_interval":             "",
	"ssl_ca_certs":                        "",
	"ssl_certfile":                        "set WEIR_TLS_CERT instead",
	"ssl_keyfile":                         "set WEIR_TLS_KEY instead",
	"tokenizer_mode":                      "",
	"tokens_only":                         "",
	"tool_call_parser":                    "",
	"tool_parser_plugin":                  "",
	"tool_server":                         "",
	"trust_request_chat_template":         "",
	"trust_request_mm_kwargs":             "",
	"uds":                                 "",
}

// parseServeArgs reads them, and refuses by name what would otherwise be ignored.
func parseServeArgs(s string) (*serveArgs, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s), &all); err != nil {
		return nil, wrongf("--args-json: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		instead, refused := refusedArgs[name]
		if !refused || bytes.Equal(all[name], []byte("null")) || bytes.Equal(all[name], []byte("false")) {
			continue
		}
		if instead != "" {
			instead = ": " + instead
		}
		return nil, wrongf("--%s of vllm serve is not supported with weir as the front end%s", strings.ReplaceAll(name, "_", "-"), instead)
	}
	a := &serveArgs{}
	if err := json.Unmarshal([]byte(s), a); err != nil {
		return nil, wrongf("--args-json: %w", err)
	}
	if a.Model == "" {
		return nil, wrongf("--args-json: there is no model_tag")
	}
	if len(a.Served) > 0 {
		var one string
		if json.Unmarshal(a.Served, &one) == nil {
			a.served = []string{one}
		} else if err := json.Unmarshal(a.Served, &a.served); err != nil {
			return nil, wrongf("--args-json: served_model_name: %w", err)
		}
	}
	return a, nil
}

// names returns the model's names for clients: the first one, and the others.
func (a *serveArgs) names() (string, []string) {
	if len(a.served) > 0 {
		return a.served[0], a.served[1:]
	}
	return a.Model, nil
}

// lora are the adapters.
func (a *serveArgs) lora() (list []config.LoRA, err error) {
	name, aliases := a.names()
	for _, l := range a.LoRA {
		twice := slices.ContainsFunc(list, func(o config.LoRA) bool { return o.Name == l.Name })
		switch {
		case l.Name == "" || l.Path == "":
			return nil, wrongf("--lora-modules of vllm serve: want NAME=PATH")
		case twice || l.Name == name || slices.Contains(aliases, l.Name):
			return nil, wrongf("--lora-modules of vllm serve: the name %q is given twice", l.Name)
		case l.Fused3:
			return nil, wrongf("--lora-modules of vllm serve: is_3d_lora_weight of %q is not supported with weir as the front end", l.Name)
		}
		list = append(list, config.LoRA{Name: l.Name, Path: l.Path})
	}
	return list, nil
}

// folder finds the folder of the model's tokenizer: a folder, or what vLLM has
// fetched into Hugging Face's cache.
func (a *serveArgs) folder() (string, error) {
	model := a.Model
	if a.Tokenizer != "" {
		model = a.Tokenizer
	}
	if info, err := os.Stat(model); err == nil && info.IsDir() {
		return model, nil
	}
	cache := os.Getenv("HF_HUB_CACHE")
	if cache == "" {
		home := os.Getenv("HF_HOME")
		if home == "" {
			user, err := os.UserHomeDir()
			if err != nil {
				return "", err
			}
			home = filepath.Join(user, ".cache", "huggingface")
		}
		cache = filepath.Join(home, "hub")
	}
	repo := filepath.Join(cache, "models--"+strings.ReplaceAll(model, "/", "--"))
	revision := a.Revision
	if revision == "" {
		revision = "main"
	}
	if ref, err := disk.Read(filepath.Join(repo, "refs", revision), disk.MaxSettings); err == nil {
		revision = strings.TrimSpace(string(ref))
	}
	dir := filepath.Join(repo, "snapshots", revision)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", fmt.Errorf("model %q is neither a folder nor in Hugging Face's cache (%s): fetch it first, or give vllm serve its folder", model, dir)
	}
	return dir, nil
}
