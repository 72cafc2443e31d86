package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// jsonStyle is how tojson writes: json.dumps' arguments as transformers passes
// them.
type jsonStyle struct {
	ascii    bool
	sort     bool
	indented bool
	indent   string
	item     string // between items
	key      string // between key and value
}

// filterToJSON is transformers' tojson, which unlike Jinja's own escapes no
// HTML.
func filterToJSON(st *state, v Value, a args) (Value, error) {
	style, err := parseJSONStyle(st, a)
	if err != nil {
		return nil, err
	}
	b, err := style.append(st, nil, v, 0)
	if err != nil {
		return nil, err
	}
	return st.str(string(b))
}

func parseJSONStyle(st *state, a args) (*jsonStyle, error) {
	p, err := a.bind("tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	s := &jsonStyle{item: ", ", key: ": "}
	for i, to := range map[int]*bool{0: &s.ascii, 3: &s.sort} {
		if p[i] != nil {
			if *to, err = truth(p[i]); err != nil {
				return nil, err
			}
		}
	}
	if p[1] != nil && p[1] != None {
		s.indented, s.item = true, ","
		if t, ok := asText(p[1]); ok {
			s.indent = t
		} else {
			n, err := asIndex(p[1])
			if err != nil {
				return nil, err
			}
			if n > 1000 {
				return nil, errorf(KindLimit, "tojson: an indent of more than 1000")
			}
			s.indent = strings.Repeat(" ", max(n, 0))
		}
	}
	if p[2] != nil && p[2] != None {
		seps, err := unpack(st, p[2], 2)
		if err != nil {
			return nil, err
		}
		var ok, ok2 bool
		s.item, ok = asText(seps[0])
		s.key, ok2 = asText(seps[1])
		if !ok || !ok2 {
			return nil, typeErrorf("tojson: the separators must be strings")
		}
	}
	return s, nil
}

func (s *jsonStyle) newline(b []byte, depth int) []byte {
	if !s.indented {
		return b
	}
	b = append(b, '\n')
	for ; depth > 0; depth-- {
		b = append(b, s.indent...)
	}
	return b
}

func (s *jsonStyle) append(st *state, b []byte, v Value, depth int) ([]byte, error) {
	if err := st.nest(depth); err != nil {
		return nil, err
	}
	if len(b) > st.opt.MaxAlloc-st.allocated {
		return nil, st.alloc(len(b))
	}
	switch v := v.(type) {
	case Str:
		return s.str(b, string(v)), nil
	case Markup:
		return s.str(b, string(v)), nil
	case noneType:
		return append(b, "null"...), nil
	case Bool:
		return strconv.AppendBool(b, bool(v)), nil
	case Int:
		return strconv.AppendInt(b, int64(v), 10), nil
	case *Big:
		return appendBig(b, v)
	case Float:
		return appendJSONFloat(b, float64(v)), nil
	case *List:
		return s.items(st, b, v.Items, depth)
	case *Tuple:
		return s.items(st, b, v.Items, depth)
	case *Dict:
		return s.dict(st, b, v, depth)
	}
	return nil, typeErrorf("Object of type %s is not JSON serializable", v.typeName())
}

func appendJSONFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "NaN"...)
	case math.IsInf(f, 1):
		return append(b, "Infinity"...)
	case math.IsInf(f, -1):
		return append(b, "-Infinity"...)
	}
	return appendFloat(b, f)
}

func (s *jsonStyle) items(st *state, b []byte, items []Value, depth int) ([]byte, error) {
	if len(items) == 0 {
		return append(b, "[]"...), nil
	}
	b = append(b, '[')
	var err error
	for i, it := range items {
		if i > 0 {
			b = append(b, s.item...)
		}
		if b, err = s.append(st, s.newline(b, depth+1), it, depth+1); err != nil {
			return nil, err
		}
	}
	return append(s.newline(b, depth), ']'), nil
}

func (s *jsonStyle) dict(st *state, b []byte, d *Dict, depth int) ([]byte, error) {
	if d.Len() == 0 {
		return append(b, "{}"...), nil
	}
	order := make([]int, d.Len())
	for i := range order {
		order[i] = i
	}
	if s.sort {
		var failed error
		slices.SortStableFunc(order, func(i, j int) int {
			c, err := compareForSort(st, d.keys[i], d.keys[j])
			if err != nil {
				failed = err
			}
			return c
		})
		if failed != nil {
			return nil, failed
		}
	}
	b = append(b, '{')
	for n, i := range order {
		if n > 0 {
			b = append(b, s.item...)
		}
		b = s.newline(b, depth+1)
		var err error
		if b, err = s.dictKey(b, d.keys[i]); err != nil {
			return nil, err
		}
		if b, err = s.append(st, append(b, s.key...), d.vals[i], depth+1); err != nil {
			return nil, err
		}
	}
	return append(s.newline(b, depth), '}'), nil
}

func (s *jsonStyle) dictKey(b []byte, k Value) ([]byte, error) {
	b = append(b, '"')
	var err error
	switch k := k.(type) {
	case Str:
		return s.str(b[:len(b)-1], string(k)), nil
	case Markup:
		return s.str(b[:len(b)-1], string(k)), nil
	case noneType:
		b = append(b, "null"...)
	case Bool:
		b = strconv.AppendBool(b, bool(k))
	case Int:
		b = strconv.AppendInt(b, int64(k), 10)
	case *Big:
		b, err = appendBig(b, k)
	case Float:
		b = appendJSONFloat(b, float64(k))
	default:
		err = typeErrorf("keys must be str, int, float, bool or None, not %s", k.typeName())
	}
	return append(b, '"'), err
}

// str appends a JSON string. Runs that need no escape are copied whole.
func (s *jsonStyle) str(b []byte, v string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(v); {
		c := v[i]
		if c >= ' ' && c != '"' && c != '\\' && (c < 0x7f || !s.ascii) {
			i++
			continue
		}
		b = append(b, v[start:i]...)
		n := 1
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c == '\f':
			b = append(b, `\f`...)
		case c == '\b':
			b = append(b, `\b`...)
		case c < ' ':
			b = appendHex(append(b, `\u`...), rune(c), 4)
		default:
			var r rune
			r, n = utf8.DecodeRuneInString(v[i:])
			if r >= 0x10000 {
				r -= 0x10000
				b = appendHex(append(b, `\u`...), 0xd800+r>>10, 4)
				r = 0xdc00 + r&0x3ff
			}
			b = appendHex(append(b, `\u`...), r, 4)
		}
		i += n
		start = i
	}
	return append(append(b, v[start:]...), '"')
}

// JSON returns a value as tojson writes it. The value is one that DecodeJSON gave.
func JSON(v Value) (string, error) {
	s := &jsonStyle{item: ", ", key: ": "}
	b, err := s.append(&state{opt: Options{MaxAlloc: math.MaxInt, MaxSteps: math.MaxInt}}, nil, v, 0)
	return string(b), err
}
