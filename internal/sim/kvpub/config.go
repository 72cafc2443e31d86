package kvpub

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"weir/internal/wire/zmtp"
)

// Config is where and how it is published. Names are those of the engines'
// --kv-events-config.
type Config struct {
	Enable         *bool   `json:"enable_kv_cache_events"` // vLLM; nil is true
	Publisher      string  `json:"publisher"`              // zmq or null; empty is zmq
	Endpoint       string  `json:"endpoint"`
	ReplayEndpoint *string `json:"replay_endpoint"` // nil: batches cannot be asked for
	BufferSteps    int     `json:"buffer_steps"`    // batches kept for those who ask
	HWM            int     `json:"hwm"`             // batches that wait for a subscriber
	MaxQueueSize   int     `json:"max_queue_size"`  // of no meaning here: nothing waits to be published
	Topic          string  `json:"topic"`
	Bind           *bool   `json:"bind"`   // SGLang; endpoints are always bound here
	Format         string  `json:"format"` // SGLang; default or empty
}

// ParseConfig reads one as it is given to vLLM and SGLang, in JSON.
func ParseConfig(text string) (c Config, err error) {
	if err := json.Unmarshal([]byte(text), &c, json.RejectUnknownMembers(true)); err != nil {
		return c, fmt.Errorf(`%w; for example {"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}`, err)
	}
	c.Publisher = cmp.Or(c.Publisher, "zmq")
	c.Endpoint = cmp.Or(c.Endpoint, "tcp://*:5557")
	c.BufferSteps, c.HWM, c.MaxQueueSize = cmp.Or(c.BufferSteps, 10_000), cmp.Or(c.HWM, 100_000), cmp.Or(c.MaxQueueSize, 100_000)
	switch {
	case c.Publisher != "zmq" && c.Publisher != "null":
		return c, fmt.Errorf("publisher is %q; it may be zmq, or null for none", c.Publisher)
	case c.BufferSteps < 0 || c.HWM < 0:
		return c, errors.New("buffer_steps and hwm must not be negative")
	case c.Bind != nil && !*c.Bind:
		return c, errors.New("bind is false: an engine that connects to its subscribers is not simulated; leave bind out")
	case c.Format != "" && c.Format != "default":
		return c, fmt.Errorf("format %q is not simulated; leave format out", c.Format)
	}
	if _, err := c.at(c.Endpoint, 0); err != nil {
		return c, err
	}
	if c.ReplayEndpoint != nil {
		_, err = c.at(*c.ReplayEndpoint, 0)
	}
	return c, err
}

// On reports whether there are events to publish.
func (c *Config) On() bool { return c.Publisher == "zmq" && (c.Enable == nil || *c.Enable) }

// at is where a rank's publisher of an endpoint is: at the port after that of the rank
// before.
func (c *Config) at(endpoint string, rank int) (zmtp.Endpoint, error) {
	e, err := zmtp.ParseEndpoint(endpoint)
	if err != nil {
		return e, err
	}
	if e.Network != "tcp" {
		if rank > 0 {
			return e, fmt.Errorf("endpoint %q has no port, which distinguishes the ranks; give tcp://HOST:PORT", endpoint)
		}
		return e, nil
	}
	host, port, _ := net.SplitHostPort(e.Address)
	base, err := strconv.Atoi(port)
	if err != nil || base < 0 || base+rank > 65535 {
		return e, fmt.Errorf("endpoint %q: want a port from 0 to 65535, that of the last rank too", endpoint)
	}
	if base > 0 {
		base += rank
	}
	e.Address = net.JoinHostPort(strings.TrimPrefix(host, "*"), strconv.Itoa(base))
	return e, nil
}
