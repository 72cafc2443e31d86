package sse

import "bytes"

// AppendData appends one event with payload as its data. A payload with line
// ends in it becomes several data lines; whatever they were, its reader gets
// them back as LF.
func AppendData(dst, payload []byte) []byte {
	return appendBlock(dst, "data: ", payload)
}

// AppendComment appends a block of comment lines, which readers of events pass
// over.
func AppendComment(dst, text []byte) []byte {
	return appendBlock(dst, ": ", text)
}

func appendBlock(dst []byte, prefix string, text []byte) []byte {
	for {
		dst = append(dst, prefix...)
		end := bytes.IndexAny(text, "\r\n")
		if end < 0 {
			dst = append(dst, text...)
			return append(dst, "\n\n"...)
		}
		dst = append(dst, text[:end]...)
		dst = append(dst, '\n')
		if text[end] == '\r' && end+1 < len(text) && text[end+1] == '\n' {
			end++
		}
		text = text[end+1:]
	}
}
