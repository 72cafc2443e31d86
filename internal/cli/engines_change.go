package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/config"
)

// call asks the admin listener for a change, or what there is, and reads its answer.
func (f *adminFlag) call(method, path string, query url.Values, body, answer any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	var header http.Header
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
		header = http.Header{"Content-Type": {"application/json"}}
	}
	said, err := f.ask(method, path, header, bytes.NewReader(data))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(said, answer); err != nil {
		return errors.Join(f.noAdmin(), err)
	}
	return nil
}

// change asks for a change and prints its result.
func (f *adminFlag) change(s *streams, method, path string, query url.Values, body any) error {
	var out outcome
	if err := f.call(method, path, query, body, &out); err != nil {
		return err
	}
	for _, step := range out.Steps {
		sayLine(s.out, "%s", step)
	}
	if len(out.Steps) == 0 {
		sayLine(s.out, "nothing to change")
	}
	for _, note := range out.Notes {
		sayLine(s.out, "note: %s", note)
	}
	return nil
}

// engineAt is the path of an engine.
func engineAt(name string) string { return "/admin/engines/" + url.PathEscape(name) }

type enginesAdd struct {
	adminFlag
	Spec    string  `arg:"" placeholder:"[KIND=]URL[,OPTION=VALUE]..." help:"The engine, in the form of weir serve --engine."`
	Weight  float64 `env:"-" placeholder:"SHARE" help:"Largest share of its models' requests that the engine gets, above 0 and up to 1."`
	Drained bool    `env:"-" help:"Add the engine drained: it gets no requests until weir engines resume."`
	Replace bool    `env:"-" help:"Replace another engine of the same name. Requests of the old engine finish there."`
}

// Help implements kong's extended help.
func (enginesAdd) Help() string {
	return `The engine stays until the gateway ends. To have it after a restart too, put it in the configuration file. Adding an engine that exists already changes nothing.

Examples:
  weir engines add http://10.0.0.3:8000
  weir engines add openai=http://10.0.0.3:8000,name=canary --weight 0.1
  weir engines add weir=10.0.0.3:9000,name=c --drained && weir engines resume c`
}

// Run implements the command.
func (c *enginesAdd) Run(s *streams) error {
	e, err := config.ParseEngine(c.Spec)
	if err != nil {
		return wrongUsage{err}
	}
	body := map[string]any{"spec": c.Spec}
	if c.Weight != 0 {
		body["weight"] = c.Weight
	}
	if c.Drained {
		body["drained"] = true
	}
	var now fleetViews
	if err := c.call(http.MethodGet, "/admin/fleet", nil, nil, &now); err != nil {
		return err
	}
	for _, o := range now.Engines {
		if o.Name == e.Name && o.Spec != c.Spec && !c.Replace {
			return fmt.Errorf("there is an engine %q already, and it is another one: %s; --replace has it replaced", e.Name, o.Spec)
		}
	}
	return c.change(s, http.MethodPut, engineAt(e.Name), nil, body)
}

type enginesDrain struct {
	adminFlag
	Name    string        `arg:"" help:"The engine's name, as weir engines shows it."`
	Timeout time.Duration `env:"-" placeholder:"DURATION" help:"Report a drain that has not ended after this time; its requests continue (--engine-drain-timeout of the gateway)."`
	Wait    bool          `env:"-" help:"Wait until the engine has no requests. The exit status is 1 if it still has some after --timeout (5m)."`
	Force   bool          `env:"-" help:"Allow draining the last engine of a model."`
}

// Help implements kong's extended help.
func (enginesDrain) Help() string {
	return `A drained engine gets no new requests, and its present ones finish. It stays connected, and stays drained after a restart of its own.

Examples:
  weir engines drain 10.0.0.1:8000
  weir engines drain a --wait --timeout 2m && systemctl restart engine-a && weir engines resume a`
}

// Run implements the command.
func (c *enginesDrain) Run(s *streams) error {
	q := url.Values{}
	if c.Timeout > 0 {
		q.Set("timeout", c.Timeout.String())
	}
	if c.Force {
		q.Set("force", "true")
	}
	if err := c.change(s, http.MethodPost, engineAt(c.Name)+"/drain", q, nil); err != nil || !c.Wait {
		return err
	}
	patience := cmp.Or(c.Timeout, 5*time.Minute)
	for late := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		var e wantedView
		if err := c.call(http.MethodGet, engineAt(c.Name), nil, nil, &e); err != nil {
			return err
		}
		switch {
		case e.State == "drained":
			sayLine(s.out, "engine %s has no requests", c.Name)
			return nil
		case e.State != "draining":
			return fmt.Errorf("engine %s is %s: its drain was ended", c.Name, e.State)
		case time.Now().After(late):
			return fmt.Errorf("engine %s has %d requests after %v, and they go on", c.Name, e.InFlight, patience)
		}
	}
}

type enginesResume struct {
	adminFlag
	Name string `arg:"" help:"The engine's name."`
}

// Help implements kong's extended help.
func (enginesResume) Help() string {
	return `Ends the drain of an engine: it gets requests again as soon as it is connected.

Examples:
  weir engines resume 10.0.0.1:8000`
}

// Run implements the command.
func (c *enginesResume) Run(s *streams) error {
	return c.change(s, http.MethodPost, engineAt(c.Name)+"/resume", nil, nil)
}

type enginesRemove struct {
	adminFlag
	Name    string        `arg:"" help:"The engine's name."`
	Timeout time.Duration `env:"-" placeholder:"DURATION" help:"Cut the requests that have not ended after this time (--engine-drain-timeout of the gateway)."`
	Force   bool          `env:"-" help:"Allow removing the last engine of a model."`
}

// Help implements kong's extended help.
func (enginesRemove) Help() string {
	return `The engine gets no new requests, its present ones may finish, and then its connections are closed. An engine of the configuration file stays removed until the gateway ends, its entry in the file changes, or it is added again.

Examples:
  weir engines remove 10.0.0.1:8000
  weir engines remove a --timeout 30s`
}

// Run implements the command.
func (c *enginesRemove) Run(s *streams) error {
	q := url.Values{}
	if c.Timeout > 0 {
		q.Set("timeout", c.Timeout.String())
	}
	if c.Force {
		q.Set("force", "true")
	}
	return c.change(s, http.MethodDelete, engineAt(c.Name), q, nil)
}

type enginesWeight struct {
	adminFlag
	Name   string  `arg:"" help:"The engine's name."`
	Weight float64 `arg:"" help:"Largest share of its models' requests that the engine gets, above 0 and up to 1."`
}

// Help implements kong's extended help.
func (enginesWeight) Help() string {
	return `An engine with a weight below 1 is a candidate for that share of its models' requests, so it gets no larger share. It gets the other requests only if no other engine takes them. 1 removes the limit.

Examples:
  weir engines weight canary 0.1
  weir engines weight canary 1`
}

// Run implements the command.
func (c *enginesWeight) Run(s *streams) error {
	return c.change(s, http.MethodPut, engineAt(c.Name)+"/weight", nil, map[string]any{"weight": c.Weight})
}
