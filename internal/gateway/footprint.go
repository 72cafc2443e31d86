package gateway

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"weir/internal/dialect/openai"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/promptkey"
	"weir/internal/fleet/route"
	"weir/internal/observe/busy"
)

// footprint is what a request is in the books of engines: how long its prompts are,
// and the blocks by which caches are known to have them. It is made while the request
// is prepared, on a worker of the pool where the body is large, and does not change.
type footprint struct {
	prompts     []extent
	only        [1]extent     // is prompts, for most requests
	root        kvindex.Block // where the blocks' chains begin
	blockTokens int           // tokens of a block
	text        int           // bytes of the prompts where tokens are told by them, else 0
	width       int           // answers to each prompt
	limit       int           // the most tokens of an answer; 0: not known
	// computed is set if nothing is generated, as for embeddings. whole is set if the
	// answer arrives at once, so that the time of its first token is unknown.
	computed, whole bool
	// byIDs is set if the blocks depend only on the prompts' ids, relayed if they are blocks
	// of text.
	byIDs, relayed bool
	// bytes is what the request is in the books of relayed engines, where it can be given to
	// those and to others; nil: there is one form of it.
	bytes *footprint
}

// at returns what the request is in the books of an engine.
func (f *footprint) at(e *route.Engine) *footprint {
	if f.bytes != nil && e.Relay != nil {
		return f.bytes
	}
	return f
}

// prompt is the first prompt as caches see it.
func (f *footprint) prompt() route.Prompt {
	first := &f.prompts[0]
	p := route.Prompt{Blocks: first.blocks, Length: first.tokens, ByIDs: f.byIDs}
	if b := f.bytes; b != nil {
		if p.Text, p.TextTokens = b.prompts[0].blocks, float64(b.blockTokens); b.text > 0 { // how many there are is known
			p.TextTokens = float64(b.prompts[0].tokens) * promptkey.BlockBytes / float64(b.text)
		}
	}
	return p
}

// extent is a prompt as caches see it.
type extent struct {
	tokens int
	blocks []kvindex.Block // none where nobody knows them
	rest   []uint32        // the ids that are in no block
}

// footprintOfIDs is that of a request whose prompts have their ids.
func (p *preparing) footprintOfIDs() {
	defer p.does(p.does(busy.Hash))
	f := &p.footprint
	f.blockTokens, f.width, f.limit = route.BlockTokens, p.width(), p.longest()
	f.prompts = f.only[:0]
	f.root, f.byIDs = p.root(), len(p.req.Media) == 0
	f.prompts = append(f.prompts, extentOf(f.root, p.ids))
	f.prompts[0].tokens += len(p.req.Media) * mediaTokens
	for i := range p.more {
		f.prompts = append(f.prompts, extentOf(f.root, p.more[i].ids))
	}
	if f.bytes != nil {
		f.bytes.prompts[0].tokens = f.length()
	}
}

func extentOf(root kvindex.Block, ids []uint32) extent {
	n := len(ids) / route.BlockTokens
	blocks := kvindex.AppendChain(make([]kvindex.Block, 0, n), root, ids, route.BlockTokens)
	return extent{len(ids), blocks, ids[n*route.BlockTokens:]}
}

// root is where the chains of the request's blocks begin. It covers all that keeps a
// prompt from using the cache of another one of the same ids.
func (p *preparing) root() kvindex.Block {
	root := p.modelRoot()
	for i := range p.req.Media {
		m := &p.req.Media[i]
		root = kvindex.Root(uint64(root), m.Kind.String(), m.URL, m.Type)
		root = root.Next(m.Data)
	}
	return root
}

// modelRoot is the root of prompts for the model, whatever they are.
func (p *preparing) modelRoot() kvindex.Block {
	base, lora := p.model.Base, p.model.Name
	if base == "" {
		base, lora = lora, ""
	}
	return route.Root(base, lora, p.salt)
}

// keys are the readers that are not in use.
var keys = sync.Pool{New: func() any { return new(keyReader) }}

// keyReader is a reader with room for its blocks.
type keyReader struct {
	promptkey.Reader
	blocks []kvindex.Block
}

// footprintOfBody returns the footprint of a relayed request, whose tokens weir does
// not know: its blocks are blocks of text. If the prompt is not known either, the
// length of the body stands for its length.
func (p *preparing) footprintOfBody(f *footprint) {
	defer p.does(p.does(busy.Hash))
	f.relayed = true
	f.blockTokens, f.width, f.limit = p.model.Ratio.Tokens(promptkey.BlockBytes), max(p.head.N, 1), p.mostTokens()
	f.computed = p.endpoint == openai.Other
	f.whole = !p.head.Stream && !f.computed
	r := keys.Get().(*keyReader)
	defer keys.Put(r)
	k, ok := r.Read(r.blocks[:0], p.modelRoot(), promptkey.ShapeOf(p.path), p.head)
	text := len(p.body)
	if ok {
		if r.blocks, text = k.Blocks, k.Bytes; k.Media == 0 {
			f.text = text // what media count for is a guess, from which nothing is learned
		}
	}
	f.prompts = f.only[:0]
	f.prompts = append(f.prompts, extent{tokens: p.model.Ratio.Tokens(text), blocks: slices.Clone(k.Blocks)})
}

// mostTokens is the bound that a relayed request gives its answer, 0 where it gives
// none.
func (p *preparing) mostTokens() (most int) {
	for _, at := range p.head.Fields {
		if name := strings.ToLower(at.Name); capped[name] != nil && strings.HasPrefix(name, "max_") {
			if n, err := strconv.Atoi(string(p.head.Body[at.Start:at.End])); err == nil && n > 0 {
				most = n
			}
		}
	}
	return most
}

// answers is how many generations the request is.
func (f *footprint) answers() int { return len(f.prompts) * f.width }

// length is how many tokens are to be resident for the request, with what its prompts
// begin with alike counted once.
func (f *footprint) length() int {
	n := 0
	for i := range f.prompts {
		n += f.prompts[i].tokens - f.shared(i)
	}
	return n
}

// shared is how much of a prompt is the beginning of the first one too, if it is
// another.
func (f *footprint) shared(i int) int {
	if i == 0 {
		return 0
	}
	n, first, other := 0, f.prompts[0].blocks, f.prompts[i].blocks
	for n < min(len(first), len(other)) && first[n] == other[n] {
		n++
	}
	return n * f.blockTokens
}
