package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/disk"
	"weir/internal/wire/trust"
)

// adminFlag names the admin listener of a running gateway.
type adminFlag struct {
	Admin        string `default:"http://127.0.0.1:8001" placeholder:"URL" help:"Base URL of the gateway's admin listener (${default})."`
	AdminKeyFile string `type:"path" placeholder:"FILE" help:"File with the operator's key, if the admin listener requires one. Or set WEIR_ADMIN_KEY to the key itself."`
	AdminCA      string `name:"admin-ca" type:"path" placeholder:"FILE" help:"Certificates, as PEM, of the authority of the admin listener's certificate, if the system does not know it."`
}

// key reads the operator's key; empty if there is none.
func (f *adminFlag) key() (string, error) {
	if f.AdminKeyFile == "" {
		return strings.TrimSpace(os.Getenv("WEIR_ADMIN_KEY")), nil
	}
	data, err := disk.ReadOnce(f.AdminKeyFile, disk.MaxSecret)
	if err != nil {
		return "", wrongf("--admin-key-file: %w", err)
	}
	key := strings.TrimSpace(string(data))
	if key == "" || strings.ContainsAny(key, "\r\n") {
		return "", wrongf("--admin-key-file %s: want one line with the key", f.AdminKeyFile)
	}
	return key, nil
}

// client is an HTTP client that knows the admin listener's certificate. It follows no redirect:
// the key is for the listener that was named.
func (f *adminFlag) client() (*http.Client, error) {
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if f.AdminCA == "" {
		return c, nil
	}
	authorities, err := trust.Authorities(f.AdminCA)
	if err != nil {
		return nil, wrongf("--admin-ca: %w", err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: authorities}
	c.Transport = transport
	return c, nil
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
	key, err := f.key()
	if err != nil {
		return nil, err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	client, err := f.client()
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
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
