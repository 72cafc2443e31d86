package gateway

import "sync"

// spare keeps values that are used again.
type spare[T any] struct {
	pool  sync.Pool // of T
	make  func() T
	empty func(T) // what is kept; nil: it stays as it is
}

func (s *spare[T]) take() T {
	if v, ok := s.pool.Get().(T); ok {
		return v
	}
	return s.make()
}

func (s *spare[T]) give(v T) {
	if s.empty != nil {
		s.empty(v)
	}
	s.pool.Put(v)
}

// spares are what requests and streams share.
type spares struct {
	relayBuffers *spare[relayBuffer]
	buffers      *spare[*[]byte]
	preparations *spare[*preparing]
}

func newSpares() spares {
	return spares{relayBuffers: newRelayBuffers(), buffers: newBuffers(), preparations: newPreparations()}
}
