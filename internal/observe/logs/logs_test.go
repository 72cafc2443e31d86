package logs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A line that repeats is written a limited number of times in a minute, and the next one has the
// number that was left out. Lines with another message, level or engine are not affected.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := New(&out, Text, slog.LevelDebug)
		b := log.With("engine", "b")
		for range 100 {
			log.Warn("it fails", "engine", "a")
			log.Error("it fails", "engine", "a")
			b.Warn("it fails")
			log.Debug("chatter")
		}
		log.Warn("something else")
		text := out.String()
		for part, want := range map[string]int{"level=WARN msg=\"it fails\" engine=a": PerMinute, "level=ERROR": PerMinute, "engine=b": PerMinute, "chatter": 100, "something else": 1, "left_out": 0} {
			if n := strings.Count(text, part); n != want {
				t.Errorf("%d times %q, want %d", n, part, want)
			}
		}
		out.Reset()
		time.Sleep(time.Minute)
		log.Warn("it fails", "engine", "a")
		text = out.String()
		// Lines that have stopped repeating are reported once, too.
		for part, want := range map[string]int{"msg=\"it fails\" engine=a left_out=80": 1, `msg="lines were left out" line="it fails" engine=b left_out=80`: 1, "level=ERROR": 1} {
			if n := strings.Count(text, part); n != want {
				t.Errorf("%d times %q, want %d, in\n%s", n, part, want, text)
			}
		}
		out.Reset()
		time.Sleep(time.Hour)
		log.Warn("it fails", "engine", "a")
		if strings.Contains(out.String(), "left_out") {
			t.Errorf("again: %s", out.String())
		}
	})
}

// Messages and engines without end fill neither the memory nor the disk.
func TestLimitIsBounded(t *testing.T) {
	var out bytes.Buffer
	l := Limit(Plain(&out, Text, slog.LevelInfo))
	log := slog.New(l)
	const each = 3
	for i := range 3 * maxLines * each {
		log.Warn("it fails", "engine", fmt.Sprint("engine-", i/each))
	}
	if got, want := strings.Count(out.String(), "\n"), maxLines*each+PerMinute; got != want {
		t.Errorf("%d lines of one message and many engines, want %d", got, want)
	}
	out.Reset()
	for i := range 3 * maxLines {
		log.Warn(fmt.Sprint("message ", i))
	}
	if n := len(l.lines.by); n > 2*maxLines+1 {
		t.Errorf("%d are told apart", n)
	}
	if got := strings.Count(out.String(), "\n"); got < maxLines-1 || got > maxLines+PerMinute {
		t.Errorf("%d lines of many messages", got)
	}
}

// JSON lines are JSON, and groups stay.
func TestJSON(t *testing.T) {
	var out bytes.Buffer
	New(&out, JSON, slog.LevelInfo).WithGroup("g").Info("hello", "request_id", "req-1")
	var line struct {
		Msg, Level string
		G          struct {
			RequestID string `json:"request_id"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Msg != "hello" || line.Level != "INFO" || line.G.RequestID != "req-1" {
		t.Errorf("%s: %v", out.Bytes(), err)
	}
}
