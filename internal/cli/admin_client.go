package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// adminFlag names the admin listener of a running gateway.
type adminFlag struct {
	Admin string `default:"http://127.0.0.1:8001" placeholder:"URL" help:"Base URL of the gateway's admin listener (${default})."`
}

const (
	// maxAnswer bounds what is read of an answer of an admin listener.
	maxAnswer = 16 << 20
	// adminWait bounds the wait for one.
	adminWait = time.Minute
)

// ask sends a request to the admin listener and reads the answer.
func (f *adminFlag) ask(method, path string, header http.Header, body io.Reader) ([]byte, error) {
	base := strings.TrimSuffix(f.Admin, "/")
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, base+path, body)
	if err != nil {
		return nil, wrongf("--admin %s: %w", f.Admin, err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w; is a gateway running, with --admin-listen at that address?", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", req.URL, err)
	case resp.StatusCode == http.StatusOK:
		return answer, nil
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") && len(answer) > 0: // what is wrong, in words
		return nil, errors.New(strings.TrimSpace(graphicLines(string(answer))))
	}
	var refused refusalView
	if json.Unmarshal(answer, &refused) == nil && refusalStatus[refused.Error.Code] == resp.StatusCode {
		hint := ""
		if refused.Error.Code == codeLast {
			hint = " (--force)"
		}
		return nil, errors.New(graphicLines(refused.Error.Message) + hint)
	}
	return nil, fmt.Errorf("%s: %s; give the admin listener's address, not the API's", req.URL, resp.Status)
}

// read is ask for an answer in JSON, into v.
func (f *adminFlag) read(path string, v any) ([]byte, error) {
	body, err := f.ask(http.MethodGet, path, nil, nil)
	if err == nil {
		if bad := json.Unmarshal(body, v, json.MatchCaseInsensitiveNames(true)); bad != nil {
			err = errors.Join(f.noAdmin(), bad)
		}
	}
	return body, err
}

// noAdmin is the error of an answer that no admin listener gives.
func (f *adminFlag) noAdmin() error { return fmt.Errorf("%s is no admin listener of weir", f.Admin) }
