package api

// Members walks an object that is known to be JSON, as an event's data is once it is
// checked ([CheckJSON]). It allocates nothing, but for a name that is spelled with
// escapes; names and values are parts of raw.
func Members(raw []byte, visit func(name, value []byte) error) error {
	for i := SkipSpace(raw, SkipSpace(raw, 0)+1); raw[i] != '}'; {
		end := StringEnd(raw, i)
		name := Spelled(raw[i:end])
		i = SkipSpace(raw, SkipSpace(raw, end)+1) // behind the colon
		end = valueEnd(raw, i)
		if err := visit(name, raw[i:end]); err != nil {
			return err
		}
		if i = SkipSpace(raw, end); raw[i] == ',' {
			i = SkipSpace(raw, i+1)
		}
	}
	return nil
}

// Items walks an array that is known to be JSON, as Members does an object.
func Items(raw []byte, visit func(i int, item []byte) error) error {
	i := SkipSpace(raw, SkipSpace(raw, 0)+1)
	for n := 0; raw[i] != ']'; n++ {
		end := valueEnd(raw, i)
		if err := visit(n, raw[i:end]); err != nil {
			return err
		}
		if i = SkipSpace(raw, end); raw[i] == ',' {
			i = SkipSpace(raw, i+1)
		}
	}
	return nil
}

// valueEnd gives the place behind the value that stands at i.
func valueEnd(b []byte, i int) int {
	for depth := 0; ; {
		switch b[i] {
		case '"':
			i = StringEnd(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\r', '\n':
			i++
			continue
		default:
			for i < len(b) && !ends(b[i]) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// ends says that a byte ends a number or a literal.
func ends(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\t', '\r', '\n':
		return true
	}
	return false
}
