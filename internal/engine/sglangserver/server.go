package sglangserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
	"weir/internal/trace"
)

// infoPaths are the names of a server's description of itself, ModelInfoPaths those of its model's.
var (
	infoPaths      = []string{"/server_info", "/get_server_info"}
	ModelInfoPaths = []string{"/model_info", "/get_model_info"}
)

// Read reads the /server_info of the server at the other end of a client.
func Read(ctx context.Context, c *upstream.Client) (*Mode, error) {
	data, err := c.GetFirst(ctx, infoPaths...)
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// Absent reports whether a reading failed because the server answers that it has no such page, or
// that weir may not see it.
func Absent(err error) bool {
	var refused *upstream.StatusError
	return errors.As(err, &refused) && refused.Status < http.StatusInternalServerError
}

// Server is what is known of a server by its own word: how it was started, and how busy it is. The
// zero value has read nothing.
type Server struct {
	info  upstream.Reading[*Mode]
	loads upstream.Reading[engine.Load]
	at    string // where the loads are
	// silent is why and since when nothing was ever read of how it was started.
	silent engine.Old
}

// Mode reads how the server was started. A server that has no /server_info has a Mode of which
// nothing is known.
//
// A server asks each of its schedulers, so one that hangs keeps it from answering. As long as it has
// never answered, its role is not known, and a half that is taken for a whole engine fails every
// request. Mode fails therefore until that has lasted for the time of two readings. Then the server
// is taken without a role, and Silent.
func (s *Server) Mode(ctx context.Context, c *upstream.Client) (*Mode, error) {
	began := trace.Now()
	now, err := Read(ctx, c)
	if had, ok := s.info.Known(c); err == nil && ok && now.half(had) {
		err = upstream.ErrHalf
	}
	now, err = s.info.Take(c, now, err)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil:
		s.silent = engine.Old{}
		return now, nil
	case Absent(err):
		s.silent = engine.Old{}
		return &Mode{}, nil
	}
	if s.silent.Page == "" {
		s.silent = engine.Old{Page: infoPaths[0], Since: began}
	}
	s.silent.Why = err.Error()
	if time.Duration(trace.Now()-s.silent.Since) < 2*c.ReadTimeout() {
		return nil, err
	}
	return &Mode{}, nil
}

// Silent reports whether the server has never said how it was started, and may yet.
func (s *Server) Silent() bool { return s.silent.Page != "" }

// Loads reads how busy a server is that was started so. known is the load as of the latest answer
// that could be read.
func (s *Server) Loads(ctx context.Context, c *upstream.Client, m *Mode) (said Loads, known engine.Load, err error) {
	s.at = m.LoadsPath()
	data, _, err := c.Get(ctx, s.at)
	if err == nil {
		said, err = parseLoads(data)
	}
	now, ok := said.Load()
	if had, known := s.loads.Known(c); err == nil && (!ok || known && len(now.Ranks) < len(had.Ranks)) {
		err = upstream.ErrHalf
	}
	known, err = s.loads.Take(c, now, err)
	return said, known, err
}

// Old adds the pages that could not be read lately.
func (s *Server) Old(to []engine.Old) []engine.Old {
	if s.Silent() {
		to = append(to, s.silent)
	}
	return s.loads.Old(s.info.Old(to, infoPaths[0]), s.at)
}
