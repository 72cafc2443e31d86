package live

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"weir/internal/load"
)

// Mode is the way in which a run is shown.
type Mode string

// The modes.
const (
	Auto  Mode = "auto"  // Lines on a terminal, Plain elsewhere
	Lines Mode = "lines" // some lines, drawn in place
	Plain Mode = "plain" // a line now and then
	Off   Mode = "off"
)

const (
	drawEvery  = 250 * time.Millisecond
	plainEvery = 5 * time.Second
)

// Terminal returns the terminal that a writer is; ok is false where it is none, or
// one that cannot move its cursor.
func Terminal(w io.Writer) (f *os.File, ok bool) {
	f, ok = w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// Screen shows a run until Close.
type Screen struct {
	stop  chan struct{}
	tasks sync.WaitGroup
}

// Show shows a run on w from now on, by its figures. A nil Screen shows nothing and
// may be closed.
func Show(w io.Writer, mode Mode, t Target, figures *load.Live) *Screen {
	f, terminal := Terminal(w)
	if mode == Auto {
		if mode = Plain; terminal {
			mode = Lines
		}
	}
	if mode == Off {
		return nil
	}
	s := &Screen{stop: make(chan struct{})}
	size := func() (width, height int) {
		if f != nil {
			if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
				return w, h
			}
		}
		return defaultWidth, defaultHeight
	}
	every := plainEvery
	if mode == Lines {
		every = drawEvery
	}
	s.tasks.Go(func() {
		v, p := NewView(t), &painter{}
		begun := time.Now()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-s.stop:
				_, _ = w.Write(p.clear()) // a terminal that is gone is no reason to stop
				return
			case <-tick.C:
			}
			v.Take(time.Since(begun), figures.Read())
			if mode == Plain {
				_, _ = fmt.Fprintln(w, v.Line())
			} else {
				width, height := size()
				lines := v.Lines(width)
				_, _ = w.Write(p.draw(lines[:min(len(lines), max(1, height-1))]))
			}
		}
	})
	return s
}

// The size of a terminal that does not report one.
const defaultWidth, defaultHeight = 80, 24

// Close ends the display and removes what was drawn in place.
func (s *Screen) Close() {
	if s == nil {
		return
	}
	close(s.stop)
	s.tasks.Wait()
}

// painter draws lines over those it drew before.
type painter struct{ drawn int }

// draw returns what draws the lines, in one write. Lines do not wrap while they
// are drawn: a terminal that became narrower in between cuts them.
func (p *painter) draw(lines []string) []byte {
	var b bytes.Buffer
	b.WriteString("\x1b[?7l")
	p.home(&b)
	for _, line := range lines {
		b.WriteString("\x1b[2K" + line + "\r\n")
	}
	b.WriteString("\x1b[J\x1b[?7h")
	p.drawn = len(lines)
	return b.Bytes()
}

// clear returns the control sequence that erases the drawing.
func (p *painter) clear() []byte {
	var b bytes.Buffer
	if p.drawn > 0 {
		p.home(&b)
		b.WriteString("\x1b[J")
	}
	p.drawn = 0
	return b.Bytes()
}

// home moves to the beginning of the drawing.
func (p *painter) home(b *bytes.Buffer) {
	if p.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA\r", p.drawn)
	}
}
