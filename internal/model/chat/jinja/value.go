package jinja

import (
	"math/big"
	"strconv"
)

// Value is a value that a template works on. The types below are all there
// are. Values are immutable, but for namespaces and the objects that a
// rendering makes for itself (loops, iterators, cyclers), so one may be shared
// by concurrent renderings.
type Value interface {
	// typeName is the name of the value's type in Python's messages.
	typeName() string
}

type (
	noneType struct{}
	// Bool is True or False.
	Bool bool
	// Int is an integer of up to 64 bits; Big is any other.
	Int int64
	// Big is an integer that does not fit Int.
	Big struct{ n *big.Int }
	// Float is a float.
	Float float64
	// Str is a string of valid UTF-8. Its length and its subscripts count
	// code points.
	Str string
	// Markup is a string marked safe: what is joined to it is escaped.
	Markup string
	// List is a list.
	List struct{ Items []Value }
	// Tuple is a tuple; group marks the pairs of groupby, whose items also
	// have names.
	Tuple struct {
		Items []Value
		group bool
	}
	// Range is what range() gives.
	Range struct{ start, stop, step, n int64 }
	// View is what a dictionary's items, keys and values give.
	View struct {
		d    *Dict
		kind viewKind
	}
	// Undefined is what a missing variable or attribute gives: it prints as
	// nothing and fails when it is used further.
	Undefined struct {
		hint string
		obj  Value // where name was looked up; nil for a variable
		name Value
		kind Kind // of the failure; the zero value means KindUndefined
	}
	// Namespace is the one value that a template can change.
	Namespace struct{ d *Dict }
	// Iter is a one-shot iterator, such as the filter map gives.
	Iter struct {
		src  iterator
		name string
	}
	// Macro is a macro with the variables of where it was defined.
	Macro struct {
		code *macroCode
		sc   *scope
	}
	// Func is a built-in function or a bound method.
	Func struct {
		name string
		fn   func(st *state, a args) (Value, error)
	}
	// Cycler is what cycler() gives.
	Cycler struct {
		items []Value
		pos   int
	}
	// Joiner is what joiner() gives.
	Joiner struct {
		sep  Value
		used bool
	}
)

// None is Python's None.
var None Value = noneType{}

type viewKind uint8

const (
	viewItems viewKind = iota
	viewKeys
	viewValues
)

func (noneType) typeName() string   { return "NoneType" }
func (Bool) typeName() string       { return "bool" }
func (Int) typeName() string        { return "int" }
func (*Big) typeName() string       { return "int" }
func (Float) typeName() string      { return "float" }
func (Str) typeName() string        { return "str" }
func (Markup) typeName() string     { return "Markup" }
func (*List) typeName() string      { return "list" }
func (*Dict) typeName() string      { return "dict" }
func (*Range) typeName() string     { return "range" }
func (*Undefined) typeName() string { return "Undefined" }
func (*Namespace) typeName() string { return "Namespace" }
func (i *Iter) typeName() string    { return i.name }
func (*Macro) typeName() string     { return "Macro" }
func (*Func) typeName() string      { return "builtin_function_or_method" }
func (*Cycler) typeName() string    { return "Cycler" }
func (*Joiner) typeName() string    { return "Joiner" }
func (*Loop) typeName() string      { return "LoopContext" }

func (t *Tuple) typeName() string {
	if t.group {
		return "_GroupTuple"
	}
	return "tuple"
}

func (v *View) typeName() string {
	switch v.kind {
	case viewKeys:
		return "dict_keys"
	case viewValues:
		return "dict_values"
	}
	return "dict_items"
}

// fail is the error of using an undefined value.
func (u *Undefined) fail() error {
	k := u.kind
	if k == 0 {
		k = KindUndefined
	}
	if u.hint != "" {
		return errorf(k, "%s", u.hint)
	}
	name := reprOrType(u.name)
	if u.obj == nil {
		return errorf(k, "%s is undefined", name)
	}
	of := u.obj.typeName() + " object"
	if u.obj == None {
		of = "None"
	}
	if _, ok := u.name.(Str); ok {
		return errorf(k, "'%s' has no attribute %s", of, name)
	}
	return errorf(k, "%s has no element %s", of, name)
}

// reprOrType names a value in a message: scalars as they are, others by type.
func reprOrType(v Value) string {
	switch v := v.(type) {
	case Str:
		return string(appendReprStr(nil, string(v)))
	case Int:
		return strconv.FormatInt(int64(v), 10)
	case Float:
		return string(appendFloat(nil, float64(v)))
	case Bool:
		if v {
			return "True"
		}
		return "False"
	case noneType:
		return "None"
	}
	return v.typeName()
}

// asText returns the text of a string, marked safe or not.
func asText(v Value) (string, bool) {
	switch v := v.(type) {
	case Str:
		return string(v), true
	case Markup:
		return string(v), true
	}
	return "", false
}

func bigValue(b *big.Int) Value {
	if b.IsInt64() {
		return Int(b.Int64())
	}
	return &Big{b}
}

// truth is Python's bool().
func truth(v Value) (bool, error) {
	switch v := v.(type) {
	case Bool:
		return bool(v), nil
	case Str:
		return v != "", nil
	case noneType, *Undefined:
		return false, nil
	case Int:
		return v != 0, nil
	case Float:
		return v != 0, nil
	case Markup:
		return v != "", nil
	case *List:
		return len(v.Items) > 0, nil
	case *Tuple:
		return len(v.Items) > 0, nil
	case *Dict:
		return v.Len() > 0, nil
	case *View:
		return v.d.Len() > 0, nil
	case *Range:
		return v.n > 0, nil
	case *Loop:
		// A loop object exists only while its loop has an item.
		return true, nil
	}
	return true, nil
}

// set assigns a namespace's attribute.
func (ns *Namespace) set(name string, v Value) error {
	if err := checkNamespaceName(name); err != nil {
		return err
	}
	return ns.d.set(Str(name), v)
}

func checkNamespaceName(name string) error {
	if len(name) > 0 && name[0] == '_' {
		return errorf(KindSecurity, "Chat templates cannot store underscore-prefixed attributes on a namespace,"+
			" but got '%s'. Please rename the attribute.", name)
	}
	return nil
}

func itoa(n int) string { return strconv.Itoa(n) }
