//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"weir/internal/engine/upstream"
	"weir/internal/lab"
	"weir/internal/trace"
)

// A bare relay does nothing but the exchanges that a request costs: one with an engine, or one
// with a prefill engine and then one with a decode engine. It looks at no field, counts nothing
// and chooses nothing. Its server is net/http and its client is weir's own, as in weir. So the
// ratio of the two is a lower bound of what a pulled pair can cost beside one engine.

// bareArgument makes the benchmark's program a bare relay.
const bareArgument = "bare-relay"

// serveBare is a bare relay until ctx ends.
func serveBare(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet(bareArgument, flag.ContinueOnError)
	flags.SetOutput(stderr)
	var b bare
	flags.Func("prefill", "the prefill engine's URL; none unless given", func(s string) (err error) { b.prefill, err = bareClient(s); return err })
	flags.Func("engine", "the URL of the engine that answers", func(s string) (err error) { b.engine, err = bareClient(s); return err })
	if err := flags.Parse(args); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: &b}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	fmt.Fprintf(stdout, "gateway http://%s\n", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func bareClient(at string) (*upstream.Client, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	return upstream.New(upstream.Options{URL: u}), nil
}

type bare struct{ prefill, engine *upstream.Client }

// ServeHTTP relays a request.
func (b *bare) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := b.relay(w, r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		panic(http.ErrAbortHandler)
	}
}

// prefills makes the body of the client's (package load) one of a prefill half.
var prefills = strings.NewReplacer(`"stream":true`, `"stream":false`, `,"stream_options":{"include_usage":true}`, ``,
	`"max_tokens":`, `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false},"max_tokens":1,"ignored":`)

const handed = `"kv_transfer_params":`

func (b *bare) relay(w http.ResponseWriter, r *http.Request) error {
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		return err
	}
	if b.prefill != nil && r.Method == http.MethodPost { // not the client's look at the models
		resp, err := b.do(r, b.prefill, []byte(prefills.Replace(string(body))))
		if err != nil {
			return err
		}
		answer, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		_, params, ok := bytes.Cut(answer, []byte(handed))
		end := bytes.IndexByte(params, '}')
		if !ok || end < 0 {
			return fmt.Errorf("the prefill engine answers %s", answer)
		}
		body = append(append(append(bytes.TrimSuffix(body, []byte("}")), ","+handed...), params[:end+1]...), '}')
	}
	resp, err := b.do(r, b.engine, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(resp.Status)
	flush := http.NewResponseController(w)
	for {
		p, err := resp.Body.Next()
		if len(p) > 0 {
			if _, err := w.Write(p); err != nil {
				return err
			}
			if err := flush.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (b *bare) do(r *http.Request, c *upstream.Client, body []byte) (*upstream.Response, error) {
	return c.Do(r.Context(), &upstream.Request{Method: r.Method, Path: r.URL.Path, Fields: "Content-Type: application/json\r\n", Body: body, Leg: &trace.Leg{}})
}

// bare starts a bare relay before the row's engines.
func (r *row) bare(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{self, bareArgument, "-engine=" + r.urls[len(r.urls)-1]}
	if len(r.urls) > 1 {
		args = append(args, "-prefill="+r.urls[0])
	}
	if r.gateway, err = lab.Start(args, lab.Environment()); err != nil {
		return err
	}
	r.processes = append(r.processes, r.gateway)
	r.plan.URL, err = r.gateway.AwaitLine(ctx, "gateway ")
	return err
}
