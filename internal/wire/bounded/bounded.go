// Package bounded reads answers whose length the other side decides.
package bounded

import "io"

// Reader reads from R, and fails with Err once R has given more than Left bytes. Setting
// Left anew begins the next part of a stream.
type Reader struct {
	R    io.Reader
	Left int
	Err  error
}

// Read implements io.Reader. It asks R for a byte more than is allowed, so that a stream of
// exactly Left bytes ends as R does.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.R.Read(p[:min(len(p), r.Left+1)])
	if r.Left -= n; r.Left < 0 {
		return 0, r.Err
	}
	return n, err
}
