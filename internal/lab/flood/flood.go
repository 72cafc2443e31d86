//go:build linux

// Package flood sends requests that do not matter to a gateway that carries streams which do:
// requests whose clients hang up before the first byte, bodies that never parse, and answers of
// one token. A fixed number begins in each second, so that gateways are compared under the same
// flood. Linux only.
package flood

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"weir/internal/lab/cell"
)

// senders is the number of connections that a flood has at a time. A gateway that does not
// keep up with them gets fewer requests than the rate.
const senders = 64

// wait bounds a request of the flood.
const wait = 10 * time.Second

// Run floods a cell's gateway from the load's beginning until the process is killed.
func Run(c *cell.Cell) error {
	board, err := c.OpenBoard()
	if err != nil {
		return err
	}
	defer board.Close()
	for {
		if at, ok := board.Started(); ok {
			cell.SleepUntil(at)
			break
		}
		time.Sleep(time.Millisecond)
	}
	f := &flood{cell: c, board: board, began: time.Now()}
	failed := make(chan error, senders)
	for range senders {
		go func() { failed <- f.send() }()
	}
	return <-failed
}

// flood is a flood under way.
type flood struct {
	cell  *cell.Cell
	board *cell.Board
	began time.Time
	next  atomic.Int64 // number of the next request
}

// send sends one request after the other. An error is a gateway that cannot be reached.
func (f *flood) send() error {
	dialer := net.Dialer{Timeout: wait}
	var conn net.Conn // kept for the next request
	var answers *bufio.Reader
	for {
		n := f.next.Add(1) - 1
		due := f.began.Add(time.Duration(float64(n) / f.cell.Load.FloodRate * float64(time.Second)))
		time.Sleep(time.Until(due))
		if conn == nil {
			c, err := dialer.DialContext(context.Background(), "tcp", f.cell.Gateway)
			if err != nil {
				return fmt.Errorf("flood: %w", err)
			}
			conn, answers = c, bufio.NewReader(c)
		}
		_ = conn.SetDeadline(time.Now().Add(wait)) // fails only on a closed connection, as writes will
		_, err := conn.Write(f.request(n))
		if err == nil && f.cell.Load.Flood == cell.HangUps {
			// Some hang up at once, others when the engine has the request.
			time.Sleep(time.Duration(n%8) * time.Millisecond)
			err = io.EOF
		}
		if err == nil {
			err = readAnswer(answers)
		}
		if err == nil || f.cell.Load.Flood == cell.HangUps {
			f.board.Flooded().Add(1)
		}
		if err != nil {
			conn.Close()
			conn = nil
		}
	}
}

// readAnswer reads an answer to its end. An error means that the connection ends with it.
func readAnswer(from *bufio.Reader) error {
	resp, err := http.ReadResponse(from, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.Close {
		return io.EOF
	}
	return nil
}

// request returns the bytes of a request.
func (f *flood) request(n int64) []byte {
	var body []byte
	switch f.cell.Load.Flood {
	case cell.BadBodies:
		body = badBody(n)
	default:
		seed := f.cell.Clients() + int(n%int64(f.cell.Capacity()-f.cell.Clients()))
		body = f.cell.Body(seed, 1)
	}
	return append(f.cell.Head(fmt.Sprintf("flood-%d", n), len(body)), body...)
}

// badBody returns a body that no JSON reader takes, of one of four kinds.
func badBody(n int64) []byte {
	const cut = `{"model":"weir-sim","stream":true,"messages":[{"role":"user","content":"Say something. `
	switch n % 4 {
	case 0:
		return append([]byte(cut), bytes.Repeat([]byte("and "), 128)...)
	case 1:
		return bytes.Repeat([]byte("["), 16<<10)
	case 2:
		return append([]byte(cut), bytes.Repeat([]byte{0xff, 0x00}, 256)...)
	}
	return append(bytes.Repeat([]byte(`{"model":`), 256), "1"...)
}
