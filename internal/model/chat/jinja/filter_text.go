package jinja

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

// textFilter makes a filter from a function on text. A string marked safe
// stays so.
func textFilter(name string, f func(string) string) filter {
	return func(st *state, v Value, a args) (Value, error) {
		if _, err := a.bind(name, 0); err != nil {
			return nil, err
		}
		return onText(st, v, f)
	}
}

func onText(st *state, v Value, f func(string) string) (Value, error) {
	s, err := text(st, v)
	if err != nil {
		return nil, err
	}
	r, err := st.str(f(s))
	if _, ok := v.(Markup); ok && err == nil {
		return markResult(r), nil
	}
	return r, err
}

func filterString(st *state, v Value, a args) (Value, error) {
	if _, err := a.bind("string", 0); err != nil {
		return nil, err
	}
	if _, ok := asText(v); ok {
		return v, nil
	}
	s, err := text(st, v)
	return Str(s), err
}

func filterSafe(st *state, v Value, a args) (Value, error) {
	if _, err := a.bind("safe", 0); err != nil {
		return nil, err
	}
	s, err := text(st, v)
	return Markup(s), err
}

// filterEscape is escape and forceescape.
func filterEscape(force bool) filter {
	return func(st *state, v Value, a args) (Value, error) {
		if _, err := a.bind("escape", 0); err != nil {
			return nil, err
		}
		if _, ok := v.(Markup); ok && !force {
			return v, nil
		}
		s, err := text(st, v)
		if err != nil {
			return nil, err
		}
		s = escapeHTML(s)
		return Markup(s), st.alloc(len(s))
	}
}

func filterTrim(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("trim", 0, "chars")
	if err != nil {
		return nil, err
	}
	s, err := text(st, v)
	if err != nil {
		return nil, err
	}
	r, err := stripText(st, "strip", s, p[0])
	if _, ok := v.(Markup); ok && err == nil {
		return markResult(r), nil
	}
	return r, err
}

func filterReplace(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("replace", 2, "old", "new", "count")
	if err != nil {
		return nil, err
	}
	n := -1
	if p[2] != nil && p[2] != None {
		if n, err = asIndex(p[2]); err != nil {
			return nil, err
		}
	}
	s, err := text(st, v)
	if err != nil {
		return nil, err
	}
	old, err := text(st, p[0])
	if err != nil {
		return nil, err
	}
	repl, err := text(st, p[1])
	if err != nil {
		return nil, err
	}
	return replace(st, s, old, repl, n)
}

func filterJoin(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("join", 0, "d", "attribute")
	if err != nil {
		return nil, err
	}
	sep := ""
	if p[0] != nil {
		if sep, err = text(st, p[0]); err != nil {
			return nil, err
		}
	}
	at := parsePath(p[1])
	it, err := iterate(v)
	if err != nil {
		return nil, err
	}
	var b []byte
	for first := true; ; first = false {
		e, ok, err := it.next(st)
		if err != nil {
			return nil, err
		}
		if !ok {
			return st.str(string(b))
		}
		if err := st.step(1); err != nil {
			return nil, err
		}
		if e, err = at.get(st, e, nil); err != nil {
			return nil, err
		}
		if !first {
			b = append(b, sep...)
		}
		if b, err = appendStr(st, b, e); err != nil {
			return nil, err
		}
		if len(b) > st.opt.MaxAlloc-st.allocated {
			return nil, st.alloc(len(b))
		}
	}
}

// filterTitle returns a plain string of markup too, as the reference does: it joins the
// words anew.
func filterTitle(st *state, v Value, a args) (Value, error) {
	if _, err := a.bind("title", 0); err != nil {
		return nil, err
	}
	s, err := text(st, v)
	if err != nil {
		return nil, err
	}
	return st.str(titleWords(s))
}

// titleWords is the filter title, which other than the method starts a word
// only after white space, a hyphen or an opening bracket.
func titleWords(s string) string {
	between := func(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) }
	var b strings.Builder
	for s != "" {
		if r, n := utf8.DecodeRuneInString(s); between(r) {
			b.WriteString(s[:n])
			s = s[n:]
			continue
		}
		word := s
		if i := strings.IndexFunc(s, between); i >= 0 {
			word = s[:i]
		}
		_, n := utf8.DecodeRuneInString(word)
		b.WriteString(upper(word[:n]))
		b.WriteString(lower(word[n:]))
		s = s[len(word):]
	}
	return b.String()
}

func filterCenter(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("center", 0, "width")
	if err != nil {
		return nil, err
	}
	if p[0] == nil {
		p[0] = Int(80)
	}
	s, err := text(st, v)
	if err != nil {
		return nil, err
	}
	r, err := justify("center")(st, s, args{pos: p})
	if _, ok := v.(Markup); ok && err == nil {
		return markResult(r), nil
	}
	return r, err
}

func filterIndent(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("indent", 0, "width", "first", "blank")
	if err != nil {
		return nil, err
	}
	first, err := flag(p[1], false)
	if err != nil {
		return nil, err
	}
	blank, err := flag(p[2], false)
	if err != nil {
		return nil, err
	}
	s, ok := asText(v)
	if !ok {
		if u, isUndef := v.(*Undefined); isUndef {
			return nil, u.fail()
		}
		return nil, errorf(KindRuntime, "can only indent a string, not '%s'", v.typeName())
	}
	pad := "    "
	if p[0] != nil {
		if pad, ok = asText(p[0]); !ok {
			n, err := asIndex(p[0])
			if err != nil {
				return nil, err
			}
			if err := st.alloc(max(n, 0)); err != nil {
				return nil, err
			}
			pad = strings.Repeat(" ", max(n, 0))
		}
	}
	lines := splitLines(s+"\n", false)
	if len(pad) > 0 && len(lines)+1 > (st.opt.MaxAlloc-st.allocated)/len(pad) {
		return nil, st.alloc(st.opt.MaxAlloc + 1)
	}
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == 0 && first || i > 0 && (blank || line != "") {
			b.WriteString(pad)
		}
		b.WriteString(line)
	}
	r, err := st.str(b.String())
	if _, ok := v.(Markup); ok && err == nil {
		return markResult(r), nil
	}
	return r, err
}

func filterTruncate(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("truncate", 0, "length", "killwords", "end", "leeway")
	if err != nil {
		return nil, err
	}
	size, leeway, end := 255, 5, "..."
	if p[0] != nil {
		if size, err = asIndex(p[0]); err != nil {
			return nil, err
		}
	}
	if p[3] != nil && p[3] != None {
		if leeway, err = asIndex(p[3]); err != nil {
			return nil, err
		}
	}
	if p[2] != nil {
		if end, err = argText("truncate", p[2]); err != nil {
			return nil, err
		}
	}
	kill, err := flag(p[1], false)
	if err != nil {
		return nil, err
	}
	tail := utf8.RuneCountInString(end)
	if size < tail {
		return nil, errorf(KindRuntime, "expected length >= %d, got %d", tail, size)
	}
	if leeway < 0 {
		return nil, errorf(KindRuntime, "expected leeway >= 0, got %d", leeway)
	}
	n, err := length(st, v)
	if err != nil {
		return nil, err
	}
	if n <= size || n-size <= leeway {
		return v, nil
	}
	s, ok := asText(v)
	if !ok {
		return nil, typeErrorf("can only truncate a string, not %s", v.typeName())
	}
	s = s[:runeOffset(s, size-tail)]
	if i := strings.LastIndexByte(s, ' '); i >= 0 && !kill {
		s = s[:i]
	}
	if _, ok := p[2].(Markup); ok {
		return add(st, likeText(v, s), Markup(end))
	}
	return add(st, likeText(v, s), Str(end))
}

// likeText returns a text as markup where the value that it is made of is.
func likeText(v Value, s string) Value {
	if _, ok := v.(Markup); ok {
		return Markup(s)
	}
	return Str(s)
}

func filterWordCount(st *state, v Value, a args) (Value, error) {
	if _, err := a.bind("wordcount", 0); err != nil {
		return nil, err
	}
	s, err := text(st, v)
	if err != nil {
		return nil, err
	}
	n, in := 0, false
	for _, r := range s {
		word := r == '_' || isAlnum(r)
		if word && !in {
			n++
		}
		in = word
	}
	return Int(n), nil
}

func filterFormat(st *state, v Value, a args) (Value, error) {
	if len(a.pos) > 0 && len(a.kw) > 0 {
		return nil, errorf(KindRuntime, "can't handle positional and keyword arguments at the same time")
	}
	if _, ok := v.(Markup); ok {
		return nil, errorf(KindUnsupported, "formatting a string marked safe is not supported")
	}
	s, err := text(st, v)
	if err != nil {
		return nil, err
	}
	if len(a.kw) > 0 {
		d := NewDict(len(a.kw))
		for _, k := range a.kw {
			d.Set(k.name, k.v)
		}
		return formatPercent(st, s, d)
	}
	return formatPercent(st, s, &Tuple{Items: a.pos})
}

func filterURLEncode(st *state, v Value, a args) (Value, error) {
	if _, err := a.bind("urlencode", 0); err != nil {
		return nil, err
	}
	if _, isText := asText(v); !isText {
		var pairs []Value
		var err error
		if d, ok := v.(*Dict); ok {
			pairs, err = list(st, &View{d, viewItems})
		} else if pairs, err = list(st, v); isKind(err, KindType) {
			pairs, err = nil, nil
			isText = true
		}
		if err != nil {
			return nil, err
		}
		if !isText {
			return encodePairs(st, pairs)
		}
	}
	s, err := text(st, v)
	if err != nil {
		return nil, err
	}
	return st.str(quoteURL(s, "/"))
}

func encodePairs(st *state, pairs []Value) (Value, error) {
	var out []string
	for _, p := range pairs {
		kv, err := unpack(st, p, 2)
		if err != nil {
			return nil, err
		}
		k, err := text(st, kv[0])
		if err != nil {
			return nil, err
		}
		v, err := text(st, kv[1])
		if err != nil {
			return nil, err
		}
		plus := func(s string) string { return strings.ReplaceAll(quoteURL(s, ""), "%20", "+") }
		out = append(out, plus(k)+"="+plus(v))
	}
	return st.str(strings.Join(out, "&"))
}

// quoteURL is Python's urllib.parse.quote.
func quoteURL(s, safe string) string {
	s = strings.ReplaceAll(url.QueryEscape(s), "+", "%20")
	if safe == "/" {
		s = strings.ReplaceAll(s, "%2F", "/")
	}
	return s
}

func filterXMLAttr(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("xmlattr", 0, "autospace")
	if err != nil {
		return nil, err
	}
	space, err := flag(p[0], true)
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, errorf(KindRuntime, "'%s' object has no attribute 'items'", v.typeName())
	}
	var out []string
	for i, k := range d.keys {
		if _, undef := d.vals[i].(*Undefined); undef || d.vals[i] == None {
			continue
		}
		key, err := argText("xmlattr", k)
		if err != nil {
			return nil, err
		}
		if strings.ContainsAny(key, " \t\n\r\f\v/>=") {
			return nil, valueErrorf("Invalid character in attribute name: %s", reprOrType(k))
		}
		val, err := filterEscape(false)(st, d.vals[i], args{})
		if err != nil {
			return nil, err
		}
		s, _ := asText(val)
		out = append(out, escapeHTML(key)+`="`+s+`"`)
	}
	s := strings.Join(out, " ")
	if space && s != "" {
		s = " " + s
	}
	return st.str(s)
}
