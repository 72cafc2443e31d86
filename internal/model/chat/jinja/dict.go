package jinja

import (
	"fmt"
	"iter"
	"math"
	"strings"
)

// Dict is a dictionary that keeps the order in which keys were first set.
type Dict struct {
	keys, vals []Value
	// index finds keys by their hash key once there are too many to compare
	// one by one.
	index map[any]int
}

// smallDict is the size up to which comparing keys beats hashing them.
const smallDict = 8

// usualDict is the number of keys up to which a dictionary has room in itself.
const usualDict = 4

// NewDict makes an empty dictionary with room for n keys.
func NewDict(n int) *Dict {
	if n > 0 && n <= usualDict { // in one allocation
		d := new(struct {
			Dict
			keys, vals [usualDict]Value
		})
		d.Dict.keys, d.Dict.vals = d.keys[:0], d.vals[:0]
		return &d.Dict
	}
	return &Dict{keys: make([]Value, 0, n), vals: make([]Value, 0, n)}
}

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// Get looks a string key up.
func (d *Dict) Get(key string) (Value, bool) {
	if d.index != nil {
		i, ok := d.index[key]
		if !ok {
			return nil, false
		}
		return d.vals[i], true
	}
	for i, k := range d.keys {
		if s, ok := k.(Str); ok && string(s) == key {
			return d.vals[i], true
		}
	}
	return nil, false
}

// Set sets a string key. The dictionary must not be visible to a rendering
// yet.
func (d *Dict) Set(key string, v Value) { d.putName(key, Str(key), v) }

// Clone copies the dictionary, not what it holds.
func (d *Dict) Clone() *Dict {
	c := NewDict(len(d.keys) + 2)
	for i, k := range d.keys {
		// The keys hash: they are those of a dictionary.
		h, _ := hashKey(k)
		c.put(h, k, d.vals[i])
	}
	return c
}

// putName is put for a string, of which name is the value.
func (d *Dict) putName(s string, name, v Value) {
	if d.index != nil || len(d.keys) >= smallDict {
		d.put(s, name, v)
		return
	}
	for i, k := range d.keys { // without a hash, which would be allocated
		if t, ok := asText(k); ok && t == s {
			d.vals[i] = v
			return
		}
	}
	d.keys, d.vals = append(d.keys, name), append(d.vals, v)
}

func (d *Dict) put(hash any, key, v Value) {
	if i, ok := d.lookup(hash); ok {
		d.vals[i] = v
		return
	}
	d.keys, d.vals = append(d.keys, key), append(d.vals, v)
	if d.index != nil {
		d.index[hash] = len(d.keys) - 1
		return
	}
	if len(d.keys) > smallDict {
		d.index = make(map[any]int, 2*len(d.keys))
		for i, k := range d.keys {
			h, _ := hashKey(k)
			d.index[h] = i
		}
	}
}

func (d *Dict) lookup(hash any) (int, bool) {
	if d.index != nil {
		i, ok := d.index[hash]
		return i, ok
	}
	if s, ok := hash.(string); ok {
		for i, k := range d.keys {
			if t, ok := asText(k); ok && t == s {
				return i, true
			}
		}
		return 0, false
	}
	for i, k := range d.keys {
		if h, err := hashKey(k); err == nil && h == hash {
			return i, true
		}
	}
	return 0, false
}

// get looks any key up; it fails where the key cannot be hashed.
func (d *Dict) get(key Value) (Value, bool, error) {
	h, err := hashKey(key)
	if err != nil {
		return nil, false, err
	}
	if i, ok := d.lookup(h); ok {
		return d.vals[i], true, nil
	}
	return nil, false, nil
}

func (d *Dict) set(key, v Value) error {
	h, err := hashKey(key)
	if err != nil {
		return err
	}
	d.put(h, key, v)
	return nil
}

type (
	noneHash  struct{}
	undefHash struct{}
	bigHash   string
	tupleHash string
)

// hashKey returns a comparable Go value that is equal for exactly the values that
// Python holds equal as keys: 1, 1.0 and True are one key.
func hashKey(v Value) (any, error) {
	switch v := v.(type) {
	case Str:
		return string(v), nil
	case Markup:
		return string(v), nil
	case Bool:
		if v {
			return int64(1), nil
		}
		return int64(0), nil
	case Int:
		return int64(v), nil
	case *Big:
		return bigHash(v.n.String()), nil
	case Float:
		f := float64(v)
		if f == math.Trunc(f) && math.Abs(f) < 1<<63 {
			return int64(f), nil
		}
		if b, ok := floatToInt(f); ok {
			return bigHash(b.String()), nil
		}
		return f, nil
	case noneType:
		return noneHash{}, nil
	case *Undefined:
		return undefHash{}, nil
	case *Tuple:
		var b strings.Builder
		for _, it := range v.Items {
			h, err := hashKey(it)
			if err != nil {
				return nil, err
			}
			if err := writeHash(&b, h); err != nil {
				return nil, err
			}
		}
		return tupleHash(b.String()), nil
	case *List, *Dict:
		return nil, typeErrorf("unhashable type: '%s'", v.typeName())
	case *View:
		if v.kind != viewValues {
			return nil, typeErrorf("unhashable type: '%s'", v.typeName())
		}
	case *Range:
		return *v, nil
	}
	return v, nil
}

// maxTupleHash bounds the hash key of a tuple: tuples that share parts are
// small in memory and large when spelt out.
const maxTupleHash = 64 << 10

// writeHash appends one item of a tuple's hash key, its length first, so that
// no two different tuples share a key.
func writeHash(b *strings.Builder, h any) error {
	s := fmt.Sprintf("%T:%v", h, h)
	if _, ok := h.(Value); ok {
		s = fmt.Sprintf("%T:%p", h, h)
	}
	if b.Len()+len(s) > maxTupleHash {
		return errorf(KindLimit, "a tuple used as a key is larger than %d bytes", maxTupleHash)
	}
	fmt.Fprintf(b, "%d:%s", len(s), s)
	return nil
}

// All returns the entries with string keys, in order.
func (d *Dict) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for i, k := range d.keys {
			if s, ok := asText(k); ok && !yield(s, d.vals[i]) {
				return
			}
		}
	}
}
