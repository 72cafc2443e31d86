package load

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"weir/internal/trace"
	"weir/internal/wire/sock"
)

// stamped is a connection that waits and is read with the kernel's stamps. TLS runs over
// it; its records then have the stamp of the read that brought their last byte.
type stamped struct {
	net.Conn
	raw     syscall.RawConn
	recv    sock.Receiver
	ready   func(fd uintptr) bool // read, made once
	counted func(fd uintptr)      // count, made once
	history arrivals

	// p belongs to a read.
	p       []byte
	n       int
	err     error
	at      int64 // when it arrived
	arrived bool  // at is the kernel's
	reads   int   // how many there were
	ended   int   // TLS records that ended with it

	header [recordHeader]byte // of the record under way
	had    int                // bytes of it that were read
	left   int                // bytes of the record after it that were not

	known sock.Arrivals // by count
	told  bool
}

// recordHeader is the length of a TLS record's header, whose last two bytes are the length
// of the rest.
const recordHeader = 5

func newStamped(tcp *net.TCPConn) (*stamped, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &stamped{Conn: tcp, raw: raw}
	s.ready, s.counted = s.read, s.count
	return s, nil
}

// Read implements net.Conn.
func (s *stamped) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.p = p
	if err := s.raw.Read(s.ready); err != nil {
		return 0, err
	}
	if s.err == nil && s.n == 0 {
		return 0, io.EOF
	}
	return s.n, s.err
}

// read reads once, and reports whether there was anything to read.
func (s *stamped) read(fd uintptr) bool {
	n, stamp, err := s.recv.TryReceive(int(fd), s.p)
	if n < 0 {
		return false
	}
	s.n, s.err = n, os.NewSyscallError("recvmsg", err)
	if n > 0 {
		now := time.Now()
		at := trace.At(now)
		if s.arrived = stamp != 0; s.arrived {
			// If the wall clock was set meanwhile, the stamp must not lie before the
			// previous read or after its own.
			at -= min(max(0, now.UnixNano()-stamp), at-s.at)
		}
		s.at = at
		s.history.read(n, len(s.p), at, s.arrived)
		s.reads++
		s.frame(s.p[:n])
	}
	return true
}

// frame counts the records that end in the bytes of a read.
func (s *stamped) frame(p []byte) {
	s.ended = 0
	for len(p) > 0 {
		if s.had < recordHeader {
			k := copy(s.header[s.had:], p)
			s.had += k
			p = p[k:]
			if s.had == recordHeader {
				s.left = int(s.header[3])<<8 | int(s.header[4])
			}
		}
		k := min(s.left, len(p))
		s.left -= k
		p = p[k:]
		if s.had == recordHeader && s.left == 0 {
			s.had = 0
			s.ended++
		}
	}
}

// between reports whether the last read ended with a record.
func (s *stamped) between() bool { return s.had == 0 }

// begin records that nothing is left to read, and that a request is sent at a time.
func (s *stamped) begin(at int64) {
	s.at = max(s.at, at)
	s.history.begin(at)
	if s.ask(); s.told {
		s.history.count(s.known)
	}
}

// oldest returns the earliest time at which any of the last read may have arrived.
func (s *stamped) oldest() int64 {
	if !s.history.asked {
		s.ask()
		s.history.oldest(s.at, s.known, s.told)
	}
	return s.history.first
}

// ask reads the kernel's counters.
func (s *stamped) ask() {
	s.told = false
	_ = s.raw.Control(s.counted) // fails only when closed
}

func (s *stamped) count(fd uintptr) { s.known, s.told = sock.Arrived(int(fd)) }

// records is the source of a TLS connection's bytes over stamped.
type records struct {
	*tls.Conn
	wire  *stamped
	cn    *conn
	reads int  // of the wire, when what follows was counted
	taken int  // records taken of those that ended with the last one, at least
	part  bool // there may be more of the record taken last
}

// receive implements source.
func (r *records) receive(p []byte) (n int, at int64, err error) {
	n, err = r.Read(p)
	now := trace.Now()
	// The wire is read only if no whole record is left from earlier reads.
	if r.reads != r.wire.reads {
		r.reads, r.taken = r.wire.reads, 0
	}
	if r.part = n == len(p); !r.part {
		r.taken++
	}
	if n == 0 || !r.wire.arrived {
		at = now
	} else {
		at = r.wire.at
	}
	if n > 0 {
		late := now - at
		if !r.wire.arrived {
			late = unstamped
		}
		r.cn.late = append(r.cn.late, late)
	}
	return n, at, err
}

// since implements source. A record arrives with its end.
func (r *records) since(at int64, last bool) int64 {
	if last && !r.part && r.taken >= r.wire.ended && r.wire.between() && r.wire.history.exact() {
		return at
	}
	return min(at, r.wire.oldest())
}
