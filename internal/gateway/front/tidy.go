package front

import (
	"runtime/debug"
	"sync"
	"time"
)

// tidy gives back the memory of a rush. A stream costs several times as much while
// net/http serves it as when it has left, and an idle stream allocates nothing: without
// tidy the garbage of thousands of streams that began at once stays until the heap has
// doubled, or until the runtime collects it after two minutes.
//
// It collects when many streams have left net/http and then none for a moment.
// While they keep coming, the runtime's own pace is right.
type tidy struct {
	mu      sync.Mutex
	left    int // streams since the last collection
	seen    int // of them, when the timer was set
	timer   *time.Timer
	stopped bool
	collect func()
}

const (
	rush      = 1024        // streams that are worth a collection, some 20 MB
	rushQuiet = time.Second // without one more
)

func newTidy() *tidy { return &tidy{collect: debug.FreeOSMemory} }

// leave counts a stream that leaves net/http.
func (t *tidy) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left++; t.left == rush && !t.stopped {
		t.seen = t.left
		t.timer = time.AfterFunc(rushQuiet, t.look)
	}
}

func (t *tidy) look() {
	t.mu.Lock()
	if t.stopped {
		t.mu.Unlock()
		return
	}
	if t.left != t.seen {
		t.seen = t.left
		t.timer.Reset(rushQuiet)
		t.mu.Unlock()
		return
	}
	t.left = 0
	t.mu.Unlock()
	t.collect()
}

func (t *tidy) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	if t.timer != nil {
		t.timer.Stop()
	}
}
