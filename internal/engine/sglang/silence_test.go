package sglang_test

import (
	"net/url"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/sglang"
)

func TestSilence(t *testing.T) {
	enginetest.Silence(t, enginetest.Silent{Pages: enginetest.SGLangPages, Later: enginetest.SGLangLater, Restarted: enginetest.SGLangRestarted, New: func(u *url.URL, interval, patience time.Duration) engine.Adapter {
		return sglang.New(sglang.Options{Name: "e", URL: u, ProbeInterval: interval, ReadTimeout: patience})
	}})
}
