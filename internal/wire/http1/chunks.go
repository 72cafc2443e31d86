package http1

// The bounds of what chunked coding may carry beside data.
const (
	maxSizeLine = 1 << 10 // bytes of a size line, extensions included
	maxTrailers = 4 << 10 // bytes of all trailers
	maxOverhead = 8 << 10 // bytes of framing beyond what the data excuses
	maxDigits   = 16      // of a size
)

// chunkState is where in the coding the next byte stands.
type chunkState uint8

const (
	inSize chunkState = iota // before or among the digits of a size
	inBlank
	inExtension
	atSizeLF
	inData
	atDataCR
	atDataLF
	atTrailer
	inTrailerName
	inTrailerValue
	atTrailerLF
	atLastLF
	ended
)

// Chunks decodes one chunked body. Its zero value stands at the body's
// beginning. Extensions are ignored, trailers are checked and thrown away.
type Chunks struct {
	state    chunkState
	digits   uint8
	line     uint16 // bytes of the size line so far
	trailers uint16 // bytes of the trailers so far
	overhead int32
	left     int64 // bytes of the chunk that are still to come
}

// Done reports whether the body's end was read.
func (c *Chunks) Done() bool { return c.state == ended }

// Decode decodes src into dst and returns how many bytes it wrote and how many it
// consumed. It stops when src is consumed, when the next byte is data and dst is
// full, and at the body's end: src[consumed:] then no longer belongs to the body. dst
// and src may begin at the same address, so that a buffer is decoded in place. The
// Chunks must not be used after an error.
func (c *Chunks) Decode(dst, src []byte) (wrote, consumed int, err error) {
	for consumed < len(src) && c.state != ended {
		if c.state == inData {
			if wrote == len(dst) {
				break
			}
			n := copy(dst[wrote:], src[consumed:][:min(int64(len(src)-consumed), c.left)])
			wrote, consumed, c.left = wrote+n, consumed+n, c.left-int64(n)
			if c.left == 0 {
				c.state = atDataCR
			}
			continue
		}
		if err := c.step(src[consumed]); err != nil {
			return wrote, consumed, err
		}
		consumed++
	}
	return wrote, consumed, nil
}

// step takes one byte of framing.
func (c *Chunks) step(b byte) error {
	switch c.state {
	case inSize, inBlank, inExtension, atSizeLF:
		return c.stepSize(b)
	case atDataCR:
		if b != '\r' {
			return malformed("a chunk does not end where its size says")
		}
		c.state = atDataLF
	case atDataLF:
		if b != '\n' {
			return malformed("a chunk does not end where its size says")
		}
		c.state = inSize
	default:
		return c.stepTrailer(b)
	}
	return nil
}

func (c *Chunks) stepSize(b byte) error {
	if c.line++; c.line > maxSizeLine {
		return malformed("the line of a chunk's size is too long")
	}
	switch {
	case c.state == atSizeLF:
		if b != '\n' {
			return malformed("a carriage return stands in the line of a chunk's size")
		}
		return c.beginChunk()
	case b == '\n':
		return malformed("the line of a chunk's size ends without a carriage return")
	case b == '\r':
		if c.digits == 0 {
			return malformed("a chunk has no size")
		}
		c.state = atSizeLF
	case c.state == inExtension:
	case c.state == inSize && octets[b]&hexOctet != 0:
		if c.digits++; c.digits > maxDigits || c.left >= 1<<59 {
			return malformed("a chunk's size is too large")
		}
		c.left = c.left<<4 | digit(b)
	case c.state == inSize && c.digits > 0 && b == ';':
		c.state = inExtension
	case c.digits > 0 && (b == ' ' || b == '\t'):
		c.state = inBlank
	default:
		return malformed("a chunk's size is not a hexadecimal number")
	}
	return nil
}

// beginChunk has read a size line. Data excuses the framing around it: an
// engine may send a byte at a time, but not hide one byte behind a thousand.
func (c *Chunks) beginChunk() error {
	excused := 16 + 2*min(c.left, 1<<20)
	c.overhead = max(0, c.overhead+int32(c.line)+2-int32(excused))
	if c.overhead > maxOverhead {
		return malformed("the chunks carry more framing than data")
	}
	c.digits, c.line = 0, 0
	c.state = inData
	if c.left == 0 {
		c.state = atTrailer
	}
	return nil
}

func (c *Chunks) stepTrailer(b byte) error {
	if c.trailers++; c.trailers > maxTrailers {
		return malformed("the trailers are too long")
	}
	switch c.state {
	case atTrailer:
		switch {
		case b == '\r':
			c.state = atLastLF
		case octets[b]&tokenOctet != 0:
			c.state = inTrailerName
		default:
			return malformed("a trailer has no proper name")
		}
	case inTrailerName:
		switch {
		case b == ':':
			c.state = inTrailerValue
		case octets[b]&tokenOctet == 0:
			return malformed("a trailer has no proper name")
		}
	case inTrailerValue:
		switch {
		case b == '\r':
			c.state = atTrailerLF
		case octets[b]&valueOctet == 0:
			return malformed("a trailer holds a control character")
		}
	case atTrailerLF, atLastLF:
		if b != '\n' {
			return malformed("a line of the trailers has no proper end")
		}
		if c.state == atLastLF {
			c.state = ended
		} else {
			c.state = atTrailer
		}
	}
	return nil
}
