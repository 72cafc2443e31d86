package promptkey

// prompts writes one prompt or several: each a text or ids. Only the first has blocks.
func (r *Reader) prompts(raw []byte) bool {
	switch {
	case none(raw):
		return false
	case raw[0] == '"':
		r.string(inside(raw))
		return true
	case raw[0] != '[':
		return false
	}
	c := cursor{b: raw}
	c.open()
	if k := c.kind(); k >= '0' && k <= '9' {
		return r.ids(raw)
	}
	for c.more() {
		switch c.kind() {
		case '"':
			r.string(inside(c.value()))
		case '[':
			if !r.ids(c.value()) {
				return false
			}
		case '{':
			m, digest := r.object(&c, partMember)
			if none(m[partText]) && none(m[partContent]) {
				r.medium(digest)
			}
			r.field('t', m[partText])
			r.field('c', m[partContent])
		default:
			return false
		}
		r.alone()
	}
	return !c.bad
}

// alone ends the first of several prompts: those that follow are counted.
func (r *Reader) alone() { r.muted = true }

// ids writes an array of ids, which is well-formed.
func (r *Reader) ids(raw []byte) bool {
	if len(raw) < 2 || raw[0] != '[' {
		return false
	}
	r.mark(markIDs)
	var id uint32
	digits := 0
	for _, c := range raw[1 : len(raw)-1] {
		switch {
		case '0' <= c && c <= '9':
			id = id*10 + uint32(c-'0')
			digits++
		case c == ',':
			if digits == 0 {
				return false
			}
			r.uint32(id)
			id, digits = 0, 0
		case c != ' ' && c != '\t' && c != '\n' && c != '\r':
			return false
		}
	}
	if digits > 0 {
		r.uint32(id)
	}
	return true
}

// pairs writes a query and the first document, and counts what is computed for the
// others: each is a prompt with the query before it.
func (r *Reader) pairs(f [numFields][]byte) bool {
	query, documents := f[fieldQuery], f[fieldDocuments]
	if none(query) || none(documents) {
		return false
	}
	if !r.prompts(query) {
		return false
	}
	r.muted = false
	queries := 0
	length := r.bytes()
	r.mark(markPrompt)
	if documents[0] != '[' {
		return r.prompts(documents)
	}
	c := cursor{b: documents}
	c.open()
	for c.more() {
		raw := c.value()
		if none(raw) {
			continue
		}
		if queries++; queries > 1 {
			r.again += length
		}
		switch raw[0] {
		case '"':
			r.string(inside(raw))
		default:
			r.value(raw)
		}
		r.alone()
	}
	return !c.bad
}
