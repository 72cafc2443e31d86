package tokenizer

// spelling is every token by its id as tokenizer.json spells it. It is laid out
// when it is asked for first: serving needs only what tokens decode to.
func (t *Tokenizer) layOutSpelling() {
	t.spelling = make([]string, len(t.known))
	for content, id := range t.ids.all() {
		t.spelling[id] = content
	}
	for id, content := range t.repeated {
		t.spelling[id] = content
	}
}

// Token returns a token as tokenizer.json spells it, "Ġthe" and not " the"; the empty
// string for an id that is no token.
func (t *Tokenizer) Token(id uint32) string {
	t.spell.Do(t.layOutSpelling)
	if int(id) >= len(t.spelling) {
		return ""
	}
	return t.spelling[id]
}
