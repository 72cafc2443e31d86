package dialect

// Members iterates over an object that is valid JSON, as the data of an event is
// after [CheckJSON]. Names and values are parts of raw. It allocates nothing except
// for names that have escapes.
func Members(raw []byte, visit func(name, value []byte) error) error {
	for i := SkipSpace(raw, SkipSpace(raw, 0)+1); raw[i] != '}'; {
		end := SkipString(raw, i)
		name := Spelled(raw[i:end])
		i = SkipSpace(raw, SkipSpace(raw, end)+1) // behind the colon
		end = SkipValue(raw, i)
		if err := visit(name, raw[i:end]); err != nil {
			return err
		}
		if i = SkipSpace(raw, end); raw[i] == ',' {
			i = SkipSpace(raw, i+1)
		}
	}
	return nil
}

// Items iterates over an array that is valid JSON.
func Items(raw []byte, visit func(i int, item []byte) error) error {
	i := SkipSpace(raw, SkipSpace(raw, 0)+1)
	for n := 0; raw[i] != ']'; n++ {
		end := SkipValue(raw, i)
		if err := visit(n, raw[i:end]); err != nil {
			return err
		}
		if i = SkipSpace(raw, end); raw[i] == ',' {
			i = SkipSpace(raw, i+1)
		}
	}
	return nil
}
