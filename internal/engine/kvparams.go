package engine

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// prefillParams are the kv_transfer_params of vLLM's prefill half that meets its decode half
// ByPush.
type prefillParams struct {
	Decode     bool   `json:"do_remote_decode"`
	Prefill    bool   `json:"do_remote_prefill"`
	TransferID string `json:"transfer_id"`
}

// pullParams are those of one that meets its decode half ByPull.
const pullParams = `{"do_remote_decode":true,"do_remote_prefill":false}`

// pushParams are the kv_transfer_params of a decode half whose KV is pushed. vLLM's engine
// ends where a member that it relies on is not there, so none is ever left out.
type pushParams struct {
	Decode     bool           `json:"do_remote_decode"`
	Prefill    bool           `json:"do_remote_prefill"`
	EngineID   string         `json:"remote_engine_id"`
	RequestID  string         `json:"remote_request_id"`
	BlockIDs   jsontext.Value `json:"remote_block_ids"`
	Host       string         `json:"remote_host"`
	Port       int            `json:"remote_port"`
	TP         int            `json:"tp_size"`
	DCP        int            `json:"dcp_size"`
	PP         int            `json:"pp_size"`
	TransferID string         `json:"transfer_id"`
}

// PrefillParams returns the kv_transfer_params of a prefill half at the engine. id
// identifies the pair: vLLM 0.32 matches pushed halves by the request's id, later releases
// by the transfer_id.
func (m *Meets) PrefillParams(id string) []byte {
	if m.Way != ByPush {
		return []byte(pullParams)
	}
	b, _ := json.Marshal(prefillParams{Decode: true, TransferID: id}) // it cannot fail: id is UTF-8
	return b
}

// DecodeParams returns the kv_transfer_params of the decode half whose prefill half is at a
// rank of the engine, -1 if it has no ranks. The halves must meet ByPush. If they meet
// ByPull, the prefill half's answer has the parameters.
func (m *Meets) DecodeParams(rank int, id string) []byte {
	p := pushParams{
		Prefill: true, EngineID: m.EngineID, RequestID: id, BlockIDs: jsontext.Value("null"), Host: m.Host, Port: m.Port,
		TP: cmp.Or(m.TP, 1), DCP: cmp.Or(m.DCP, 1), PP: cmp.Or(m.PP, 1), TransferID: id,
	}
	if rank >= 0 {
		p.EngineID += "_dp" + strconv.Itoa(rank)
		p.Port += rank
	}
	b, _ := json.Marshal(p)
	return b
}

// handed are the members of a prefill half's answer that weir looks at.
type handed struct {
	Prefill   bool           `json:"do_remote_prefill"`
	BlockIDs  jsontext.Value `json:"remote_block_ids"`
	EngineID  string         `json:"remote_engine_id"`
	RequestID string         `json:"remote_request_id"`
	Host      string         `json:"remote_host"`
	Port      int            `json:"remote_port"`
	TP        int            `json:"tp_size"`
	DCP       int            `json:"dcp_size"`
	PP        int            `json:"pp_size"`
	Mode      string         `json:"transfer_mode"`
}

func readHanded(params []byte) (h handed, err error) {
	if len(params) == 0 || jsontext.Value(params).Kind() == 'n' {
		return h, errors.New("a prefill half was answered without kv_transfer_params; start the engine with --kv-transfer-config")
	}
	if err := json.Unmarshal(params, &h); err != nil {
		return h, fmt.Errorf("the kv_transfer_params that answer a prefill half cannot be read: %w", err)
	}
	lacks := ""
	switch {
	case !h.Prefill:
		lacks = "do_remote_prefill"
	case h.EngineID == "":
		lacks = "remote_engine_id"
	case h.RequestID == "":
		lacks = "remote_request_id"
	case h.Host == "":
		lacks = "remote_host"
	case h.Port <= 0:
		lacks = "remote_port"
	case h.TP <= 0:
		lacks = "tp_size"
	}
	if lacks != "" {
		return h, fmt.Errorf("the kv_transfer_params that answer a prefill half have no %s; weir knows those of NixlConnector and NixlPushConnector", lacks)
	}
	return h, nil
}

// CheckParams returns an error for kv_transfer_params with which a decode engine
// would crash, or wait in vain.
func CheckParams(params []byte) error {
	var h handed
	if err := json.Unmarshal(params, &h); err != nil || !h.Prefill {
		return err
	}
	_, err := readHanded(params)
	return err
}

// PrefillOf returns the request to send to an engine of vLLM's. For a prefill half it
// asks for one id after the prompt, without log probabilities, which is returned to
// nobody.
func PrefillOf(req *infer.Request) *infer.Request {
	if req.Half == nil || req.Half.Role != infer.RolePrefill {
		return req
	}
	one := *req
	one.MaxTokens, one.MinTokens, one.Logprobs, one.Guide = 1, 0, nil, nil
	return &one
}

// CheckHalf returns an error for a half without the parameters that an engine of vLLM's needs.
// A half with only some of them would crash the engine.
func CheckHalf(h *infer.Half) *infer.Error {
	if h == nil || h.Params == nil && h.Role == infer.RoleDecode {
		return nil // a decode half whose prefill half has handed nothing on is whole
	}
	if jsontext.Value(h.Params).Kind() != '{' || !jsontext.Value(h.Params).IsValid() {
		return infer.Errorf(infer.CodeInternal, "a %s half without kv_transfer_params", h.Role)
	}
	if err := CheckParams(h.Params); err != nil {
		return &infer.Error{Code: infer.CodeInternal, Message: "a half's kv_transfer_params would end the engine", Cause: err}
	}
	return nil
}

// CheckHanded checks a prefill half's answer before it is passed to a decode half that
// meets it ByPull, because the decode engine does not survive some missing fields. An
// answer without an error is passed on unchanged.
func CheckHanded(params []byte) error {
	h, err := readHanded(params)
	if err != nil {
		return err
	}
	if !filled(h.BlockIDs) {
		return errors.New("the kv_transfer_params that answer a prefill half have no remote_block_ids: it kept no KV")
	}
	return nil
}

// filled reports whether a value is an array that has items.
func filled(value jsontext.Value) bool {
	if value.Kind() != '[' {
		return false
	}
	const space = " \t\r\n"
	items := bytes.TrimLeft(bytes.TrimLeft(value, space)[1:], space)
	return items[0] != ']'
}

// HandedCached returns the number of cached prompt tokens that a prefill engine reports
// in the kv_transfer_params of its answer, or -1 if it reports none.
func HandedCached(params []byte) int {
	const member = "remote_prefill_cached_tokens"
	if !bytes.Contains(params, []byte(member)) { // as of most releases, whose lists of blocks are long
		return -1
	}
	said := struct {
		Cached *int `json:"remote_prefill_cached_tokens"`
	}{}
	if json.Unmarshal(params, &said) != nil || said.Cached == nil || *said.Cached < 0 {
		return -1
	}
	return *said.Cached
}

// ReadMeets reads from an engine's answer to a prefill half how other engines meet its
// halves. rank is the rank that answered, or -1 if the engine has no ranks.
func ReadMeets(params []byte, rank int) (Meets, error) {
	h, err := readHanded(params)
	if err != nil {
		return Meets{}, err
	}
	m := Meets{Way: ByPull, Host: h.Host, Port: h.Port, EngineID: h.EngineID, TP: h.TP, DCP: h.DCP, PP: h.PP, Whole: true}
	switch h.Mode {
	case "push":
		m.Way = ByPush
	case "pull", "": // releases before both did not say
	default:
		return Meets{}, fmt.Errorf("the engine's transfer_mode is %q; weir knows pull and push", h.Mode)
	}
	if rank >= 0 {
		suffix := "_dp" + strconv.Itoa(rank)
		id, ok := strings.CutSuffix(h.EngineID, suffix)
		if !ok || h.Port <= rank {
			return Meets{}, fmt.Errorf("rank %d calls itself %q at port %d; want an id that ends in %s", rank, h.EngineID, h.Port, suffix)
		}
		m.EngineID, m.Port = id, h.Port-rank
	}
	return m, nil
}
