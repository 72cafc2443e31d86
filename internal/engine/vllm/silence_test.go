package vllm_test

import (
	"net/url"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/vllm"
)

func TestSilence(t *testing.T) {
	enginetest.Silence(t, enginetest.Silent{Pages: enginetest.VLLMPages, Later: enginetest.VLLMLater, Restarted: enginetest.VLLMRestarted, New: func(u *url.URL, interval, patience time.Duration) engine.Adapter {
		return vllm.New(vllm.Options{Name: "e", URL: u, ProbeInterval: interval, ReadTimeout: patience}, vllm.Flags{})
	}})
}
