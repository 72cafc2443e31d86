package dialect

// Members iterates over an object that is valid JSON, as the data of an event is
// after [CheckJSON]. Names and values are parts of raw. It allocates nothing except
// for names that have escapes.
func Members(raw []byte, visit func(name, value []byte) error) error {
	_, err := MembersAt(raw, SkipSpace(raw, 0), visit)
	return err
}

// MembersAt is Members of the object that begins at raw[i]. It returns the place behind it.
func MembersAt(raw []byte, i int, visit func(name, value []byte) error) (end int, err error) {
	for i = SkipSpace(raw, i+1); raw[i] != '}'; {
		end := SkipString(raw, i)
		name := Spelled(raw[i:end])
		i = SkipSpace(raw, SkipSpace(raw, end)+1) // behind the colon
		end = SkipValue(raw, i)
		if err := visit(name, raw[i:end]); err != nil {
			return 0, err
		}
		if i = SkipSpace(raw, end); raw[i] == ',' {
			i = SkipSpace(raw, i+1)
		}
	}
	return i + 1, nil
}

// Items iterates over an array that is valid JSON.
func Items(raw []byte, visit func(i int, item []byte) error) error {
	return ItemsAt(raw, func(n, at int) (end int, err error) {
		end = SkipValue(raw, at)
		return end, visit(n, raw[at:end])
	})
}

// ItemsAt is Items for those who pass over the items themselves: visit gets the place where the
// n-th one begins, and returns the place behind it.
func ItemsAt(raw []byte, visit func(n, at int) (end int, err error)) error {
	i := SkipSpace(raw, SkipSpace(raw, 0)+1)
	for n := 0; raw[i] != ']'; n++ {
		end, err := visit(n, i)
		if err != nil {
			return err
		}
		if i = SkipSpace(raw, end); raw[i] == ',' {
			i = SkipSpace(raw, i+1)
		}
	}
	return nil
}
