package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// strFunc is a string method on its receiver.
type strFunc func(st *state, s string, a args) (Value, error)

// stringMethod returns a string's method, nil where it has none such. The methods of a
// string marked safe escape their arguments and mark what they return.
func stringMethod(obj Value, name string) (Value, error) {
	fn := lookupStrMethod(name)
	if fn == nil {
		if refusedStrMethod(name) {
			return nil, errorf(KindUnsupported, "the string method '%s' is not supported in chat templates", name)
		}
		return nil, nil
	}
	s, _ := asText(obj)
	if _, ok := obj.(Markup); !ok {
		return &Func{name, func(st *state, a args) (Value, error) {
			if err := st.scan(s); err != nil {
				return nil, err
			}
			return fn(st, s, a)
		}}, nil
	}
	if name == "format" || name == "format_map" {
		return nil, errorf(KindUnsupported, "formatting a string marked safe is not supported")
	}
	return &Func{name, func(st *state, a args) (Value, error) {
		if err := st.scan(s); err != nil {
			return nil, err
		}
		safe := args{kw: a.kw}
		for _, v := range a.pos {
			safe.pos = append(safe.pos, escapeArg(v))
		}
		v, err := fn(st, s, safe)
		if err != nil {
			return nil, err
		}
		return markResult(v), nil
	}}, nil
}

func escapeArg(v Value) Value {
	switch v := v.(type) {
	case Str:
		return Str(escapeHTML(string(v)))
	case *List:
		out := &List{}
		for _, it := range v.Items {
			out.Items = append(out.Items, escapeArg(it))
		}
		return out
	}
	return v
}

func markResult(v Value) Value {
	switch v := v.(type) {
	case Str:
		return Markup(v)
	case *List:
		out := &List{}
		for _, it := range v.Items {
			out.Items = append(out.Items, markResult(it))
		}
		return out
	case *Tuple:
		out := &Tuple{}
		for _, it := range v.Items {
			out.Items = append(out.Items, markResult(it))
		}
		return out
	}
	return v
}

func refusedStrMethod(name string) bool {
	switch name {
	case "encode", "translate", "maketrans", "casefold":
		return true
	}
	return false
}

func lookupStrMethod(name string) strFunc {
	switch name {
	case "upper":
		return plain(name, upper)
	case "lower":
		return plain(name, lower)
	case "title":
		return plain(name, title)
	case "capitalize":
		return plain(name, capitalize)
	case "swapcase":
		return plain(name, swapcase)
	case "strip", "lstrip", "rstrip":
		return strip(name)
	case "split", "rsplit":
		return split(name)
	case "splitlines":
		return methodSplitLines
	case "startswith":
		return affix(name, strings.HasPrefix)
	case "endswith":
		return affix(name, strings.HasSuffix)
	case "removeprefix":
		return cutAffix(name, strings.TrimPrefix)
	case "removesuffix":
		return cutAffix(name, strings.TrimSuffix)
	case "replace":
		return methodReplace
	case "join":
		return methodJoin
	case "find", "rfind", "index", "rindex", "count":
		return search(name)
	case "partition", "rpartition":
		return partition(name)
	case "ljust", "rjust", "center":
		return justify(name)
	case "zfill":
		return methodZfill
	case "expandtabs":
		return methodExpandTabs
	case "format":
		return func(st *state, s string, a args) (Value, error) { return formatBraces(st, s, a) }
	case "format_map":
		return func(st *state, s string, a args) (Value, error) {
			v, err := a.bindPos(name, 1, 1)
			if err != nil {
				return nil, err
			}
			var spread args
			if err := spread.spread(v[0]); err != nil {
				return nil, err
			}
			return formatBraces(st, s, spread)
		}
	}
	return lookupStrPredicate(name)
}

func lookupStrPredicate(name string) strFunc {
	var ok func(string) bool
	each := func(f func(rune) bool) func(string) bool {
		return func(s string) bool { return all(s, f) }
	}
	switch name {
	case "isspace":
		ok = each(isSpace)
	case "isalpha":
		ok = each(isAlpha)
	case "isdigit":
		ok = each(isDigit)
	case "isdecimal":
		ok = each(isDecRune)
	case "isnumeric":
		ok = each(isNumeric)
	case "isalnum":
		ok = each(isAlnum)
	case "isascii":
		ok = isASCII
	case "isprintable":
		ok = func(s string) bool { return s == "" || all(s, unicode.IsPrint) }
	case "islower":
		ok = func(s string) bool { return caseTest(s, isLowerRune) }
	case "isupper":
		ok = func(s string) bool { return caseTest(s, isUpperRune) }
	case "istitle":
		ok = isTitle
	case "isidentifier":
		ok = isIdentifier
	default:
		return nil
	}
	return func(_ *state, s string, a args) (Value, error) {
		_, err := a.bindPos(name, 0, 0)
		return Bool(ok(s)), err
	}
}

// plain makes a method without arguments.
func plain(name string, f func(string) string) strFunc {
	return func(st *state, s string, a args) (Value, error) {
		if _, err := a.bindPos(name, 0, 0); err != nil {
			return nil, err
		}
		return st.str(f(s))
	}
}

// argText returns a string argument.
func argText(fn string, v Value) (string, error) {
	s, ok := asText(v)
	if !ok {
		if u, isUndef := v.(*Undefined); isUndef {
			return "", typeErrorf("%s() argument must be str, not %s", fn, u.typeName())
		}
		return "", typeErrorf("%s() argument must be str, not %s", fn, v.typeName())
	}
	return s, nil
}

func strip(name string) strFunc {
	return func(st *state, s string, a args) (Value, error) {
		v, err := a.bindPos(name, 0, 1)
		if err != nil {
			return nil, err
		}
		return stripText(st, name, s, v[0])
	}
}

// stripText cuts white space, or the code points of cut, from the sides that
// the method's name says.
func stripText(st *state, name, s string, cut Value) (Value, error) {
	in := isSpace
	if cut != nil && cut != None {
		set, err := argText(name, cut)
		if err != nil {
			return nil, err
		}
		in = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if name != "rstrip" {
		s = strings.TrimLeftFunc(s, in)
	}
	if name != "lstrip" {
		s = strings.TrimRightFunc(s, in)
	}
	return st.str(s)
}

func strList(st *state, parts []string) (Value, error) {
	n := 0
	l := &List{Items: make([]Value, len(parts))}
	for i, p := range parts {
		l.Items[i] = Str(p)
		n += len(p) + valueSize
	}
	return l, st.alloc(n)
}

func split(name string) strFunc {
	return func(st *state, s string, a args) (Value, error) {
		v, err := a.bind(name, 0, "sep", "maxsplit")
		if err != nil {
			return nil, err
		}
		limit := -1
		if v[1] != nil {
			if limit, err = asIndex(v[1]); err != nil {
				return nil, err
			}
		}
		// A limit beyond the length is none, and SplitN adds one to it.
		if limit > len(s) {
			limit = -1
		}
		if v[0] == nil || v[0] == None {
			return strList(st, splitSpace(s, limit, name == "rsplit"))
		}
		sep, ok := asText(v[0])
		if !ok {
			return nil, typeErrorf("must be str or None, not %s", v[0].typeName())
		}
		if sep == "" {
			return nil, valueErrorf("empty separator")
		}
		return strList(st, splitSep(s, sep, limit, name == "rsplit"))
	}
}

func methodSplitLines(st *state, s string, a args) (Value, error) {
	v, err := a.bind("splitlines", 0, "keepends")
	if err != nil {
		return nil, err
	}
	keep := false
	if v[0] != nil {
		if keep, err = truth(v[0]); err != nil {
			return nil, err
		}
	}
	return strList(st, splitLines(s, keep))
}

func affix(name string, has func(s, part string) bool) strFunc {
	return func(_ *state, s string, a args) (Value, error) {
		v, err := a.bindPos(name, 1, 3)
		if err != nil {
			return nil, err
		}
		s, _, ok, err := window(s, v[1], v[2])
		if err != nil {
			return nil, err
		}
		parts := []Value{v[0]}
		if t, ok := v[0].(*Tuple); ok {
			parts = t.Items
		}
		for _, p := range parts {
			t, isText := asText(p)
			if !isText {
				return nil, typeErrorf("%s first arg must be str or a tuple of str, not %s", name, p.typeName())
			}
			if ok && has(s, t) {
				return Bool(true), nil
			}
		}
		return Bool(false), nil
	}
}

// window cuts s to the code points of the optional bounds start and end; from
// is the byte offset of the window, and ok says that start is within s.
func window(s string, start, end Value) (sub string, from int, ok bool, err error) {
	if start == nil && end == nil {
		return s, 0, true, nil
	}
	n := utf8.RuneCountInString(s)
	for _, v := range []*Value{&start, &end} {
		if *v == nil {
			*v = None
		}
	}
	lo, hi, _, err := sliceBounds(n, start, end, None)
	if err != nil {
		return "", 0, false, err
	}
	if start != None {
		if i, _ := asIndex(start); i > n {
			return "", 0, false, nil
		}
	}
	if lo > hi {
		return "", 0, false, nil
	}
	from = runeOffset(s, lo)
	return s[from : from+runeOffset(s[from:], hi-lo)], from, true, nil
}

func cutAffix(name string, cut func(s, part string) string) strFunc {
	return func(st *state, s string, a args) (Value, error) {
		v, err := a.bindPos(name, 1, 1)
		if err != nil {
			return nil, err
		}
		part, err := argText(name, v[0])
		if err != nil {
			return nil, err
		}
		return st.str(cut(s, part))
	}
}

func methodReplace(st *state, s string, a args) (Value, error) {
	v, err := a.bindPos("replace", 2, 3)
	if err != nil {
		return nil, err
	}
	old, err := argText("replace", v[0])
	if err != nil {
		return nil, err
	}
	repl, err := argText("replace", v[1])
	if err != nil {
		return nil, err
	}
	n := -1
	if v[2] != nil {
		if n, err = asIndex(v[2]); err != nil {
			return nil, err
		}
	}
	return replace(st, s, old, repl, n)
}

// replace accounts for the result before it is made.
func replace(st *state, s, old, repl string, n int) (Value, error) {
	if len(repl) > len(old) {
		// Count of the empty string is the code points plus one, as in Python.
		hits := strings.Count(s, old)
		if n >= 0 {
			hits = min(hits, n)
		}
		if grow := len(repl) - len(old); hits > 0 && grow > (st.opt.MaxAlloc-st.allocated)/hits {
			return nil, st.alloc(st.opt.MaxAlloc + 1)
		}
	}
	return st.str(strings.Replace(s, old, repl, n))
}

func methodJoin(st *state, sep string, a args) (Value, error) {
	v, err := a.bindPos("join", 1, 1)
	if err != nil {
		return nil, err
	}
	items, err := list(st, v[0])
	if err != nil {
		if isKind(err, KindType) {
			return nil, typeErrorf("can only join an iterable")
		}
		return nil, err
	}
	var b []byte
	for i, it := range items {
		s, ok := asText(it)
		if !ok {
			return nil, typeErrorf("sequence item %d: expected str instance, %s found", i, it.typeName())
		}
		if i > 0 {
			b = append(b, sep...)
		}
		if b = append(b, s...); len(b) > st.opt.MaxAlloc-st.allocated {
			break
		}
	}
	return st.str(string(b))
}

func search(name string) strFunc {
	return func(_ *state, s string, a args) (Value, error) {
		v, err := a.bindPos(name, 1, 3)
		if err != nil {
			return nil, err
		}
		part, err := argText(name, v[0])
		if err != nil {
			return nil, err
		}
		sub, from, ok, err := window(s, v[1], v[2])
		if err != nil {
			return nil, err
		}
		at := -1
		switch {
		case name == "count":
			if !ok {
				return Int(0), nil
			}
			return Int(strings.Count(sub, part)), nil
		case !ok:
		case name[0] == 'r':
			at = strings.LastIndex(sub, part)
		default:
			at = strings.Index(sub, part)
		}
		if at >= 0 {
			return Int(utf8.RuneCountInString(s[:from+at])), nil
		}
		if strings.HasSuffix(name, "index") {
			return nil, valueErrorf("substring not found")
		}
		return Int(-1), nil
	}
}

func partition(name string) strFunc {
	return func(_ *state, s string, a args) (Value, error) {
		v, err := a.bindPos(name, 1, 1)
		if err != nil {
			return nil, err
		}
		sep, err := argText(name, v[0])
		if err != nil {
			return nil, err
		}
		if sep == "" {
			return nil, valueErrorf("empty separator")
		}
		three := func(a, b, c string) Value { return &Tuple{Items: []Value{Str(a), Str(b), Str(c)}} }
		if name == "partition" {
			i := strings.Index(s, sep)
			if i < 0 {
				return three(s, "", ""), nil
			}
			return three(s[:i], sep, s[i+len(sep):]), nil
		}
		i := strings.LastIndex(s, sep)
		if i < 0 {
			return three("", "", s), nil
		}
		return three(s[:i], sep, s[i+len(sep):]), nil
	}
}

func justify(name string) strFunc {
	return func(st *state, s string, a args) (Value, error) {
		v, err := a.bindPos(name, 1, 2)
		if err != nil {
			return nil, err
		}
		width, err := asIndex(v[0])
		if err != nil {
			return nil, err
		}
		fill := " "
		if v[1] != nil {
			if fill, err = argText(name, v[1]); err != nil {
				return nil, err
			}
			if utf8.RuneCountInString(fill) != 1 {
				return nil, typeErrorf("The fill character must be exactly one character long")
			}
		}
		n := width - utf8.RuneCountInString(s)
		if n <= 0 {
			return Str(s), nil
		}
		left := 0
		switch name {
		case "rjust":
			left = n
		case "center":
			left = n/2 + (n & width & 1)
		}
		if err := st.alloc(n); err != nil {
			return nil, err
		}
		return st.str(strings.Repeat(fill, left) + s + strings.Repeat(fill, n-left))
	}
}

func methodZfill(st *state, s string, a args) (Value, error) {
	v, err := a.bindPos("zfill", 1, 1)
	if err != nil {
		return nil, err
	}
	width, err := asIndex(v[0])
	if err != nil {
		return nil, err
	}
	n := width - utf8.RuneCountInString(s)
	if n <= 0 {
		return Str(s), nil
	}
	if err := st.alloc(n); err != nil {
		return nil, err
	}
	sign := ""
	if s != "" && (s[0] == '+' || s[0] == '-') {
		sign, s = s[:1], s[1:]
	}
	return st.str(sign + strings.Repeat("0", n) + s)
}

func methodExpandTabs(st *state, s string, a args) (Value, error) {
	v, err := a.bind("expandtabs", 0, "tabsize")
	if err != nil {
		return nil, err
	}
	size := 8
	if v[0] != nil {
		if size, err = asIndex(v[0]); err != nil {
			return nil, err
		}
	}
	if size > 1<<16 {
		return nil, errorf(KindLimit, "expandtabs: a tab size of more than %d", 1<<16)
	}
	if err := st.alloc(strings.Count(s, "\t") * max(size, 0)); err != nil {
		return nil, err
	}
	var b strings.Builder
	col := 0
	for _, r := range s {
		switch r {
		case '\t':
			if size > 0 {
				n := size - col%size
				b.WriteString(strings.Repeat(" ", n))
				col += n
			}
			continue
		case '\n', '\r':
			col = 0
		default:
			col++
		}
		b.WriteRune(r)
	}
	return st.str(b.String())
}
