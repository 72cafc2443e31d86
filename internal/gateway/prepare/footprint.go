package prepare

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"weir/internal/dialect/openai"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/promptkey"
	"weir/internal/fleet/route"
	"weir/internal/gateway/footprint"
	"weir/internal/observe/busy"
)

// footprintOfIDs is that of a request whose prompts have their ids.
func (p *preparing) footprintOfIDs() {
	defer p.does(p.does(busy.Hash))
	f := &p.Footprint
	f.BlockTokens, f.Width, f.Limit = route.BlockTokens, p.width(), p.Longest()
	f.Root, f.ByIDs = p.root(), len(p.Request.Media) == 0
	f.Add(footprint.ExtentOf(f.Root, p.IDs))
	f.Prompts[0].Tokens += len(p.Request.Media) * mediaTokens
	for i := range p.More {
		f.Add(footprint.ExtentOf(f.Root, p.More[i].IDs))
	}
	if f.Bytes != nil {
		f.Bytes.Prompts[0].Tokens = f.Length()
	}
}

// root is where the chains of the request's blocks begin. It covers all that keeps a
// prompt from using the cache of another one of the same ids.
func (p *preparing) root() kvindex.Block {
	root := p.modelRoot()
	for i := range p.Request.Media {
		m := &p.Request.Media[i]
		root = kvindex.Root(uint64(root), m.Kind.String(), m.URL, m.Type)
		root = root.Next(m.Data)
	}
	return root
}

// modelRoot is the root of prompts for the model, whatever they are.
func (p *preparing) modelRoot() kvindex.Block {
	base, lora := p.to.Model.Base, p.to.Model.Name
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
func (p *preparing) footprintOfBody(f *footprint.Footprint) {
	defer p.does(p.does(busy.Hash))
	f.Relayed = true
	f.BlockTokens, f.Width, f.Limit = p.to.Model.Ratio.Tokens(promptkey.BlockBytes), max(p.Head.N, 1), p.mostTokens()
	f.Computed = p.in.Endpoint == openai.Other
	f.Whole = !p.Head.Stream && !f.Computed
	r := keys.Get().(*keyReader)
	defer keys.Put(r)
	k, ok := r.Read(r.blocks[:0], p.modelRoot(), promptkey.ShapeOf(p.in.Path), p.Head)
	text := len(p.Body)
	if ok {
		if r.blocks, text = k.Blocks, k.Bytes; k.Media == 0 {
			f.Text = text // what media count for is a guess, from which nothing is learned
		}
	}
	f.Add(footprint.Extent{Tokens: p.to.Model.Ratio.Tokens(text), Blocks: slices.Clone(k.Blocks)})
}

// mostTokens is the bound that a relayed request gives its answer, 0 where it gives
// none.
func (p *preparing) mostTokens() (most int) {
	for _, at := range p.Head.Fields {
		if name := strings.ToLower(at.Name); capped[name] != nil && strings.HasPrefix(name, "max_") {
			if n, err := strconv.Atoi(string(p.Head.Body[at.Start:at.End])); err == nil && n > 0 {
				most = n
			}
		}
	}
	return most
}
