package kubernetes

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/wire/bounded"
	"weir/internal/wire/trust"
)

// Bounds of what the API server may send and of how long it may take.
const (
	maxPage      = 32 << 20 // bytes of an answer to a list
	maxEvent     = 4 << 20  // bytes of an event; etcd's objects have up to 1.5 MB
	maxStatus    = 64 << 10 // bytes of an error
	listTime     = 30 * time.Second
	headTime     = 15 * time.Second
	watchTime    = 5 * time.Minute  // after which the server ends a watch
	silence      = 90 * time.Second // without an event; bookmarks come each minute
	tokenTime    = time.Minute      // for which a token that was read is used
	dialTime     = 10 * time.Second
	idleTime     = 30 * time.Second // until a connection is asked whether it lives
	maxTokenSize = 1 << 20
)

// client asks an API server.
type client struct {
	access    Access
	namespace string
	// transport replaces the one that is made of access, in tests.
	transport http.RoundTripper
	maxPage   int // bytes of an answer to a list
	panicked  func(*infer.Panic)

	mu     sync.Mutex
	http   *http.Client
	ca     string // of http
	token  string
	readAt time.Time // when token was read
}

// problem is an answer of the API server that is an error.
type problem struct {
	code    int
	message string
	after   time.Duration
}

func (p *problem) Error() string { return p.message }

// gone reports whether the server no longer has the version or the rest of a list that was
// asked for.
func gone(err error) bool {
	p, ok := errors.AsType[*problem](err)
	return ok && p.code == http.StatusGone
}

// after returns how long the server wants to be left alone.
func after(err error) time.Duration {
	if p, ok := errors.AsType[*problem](err); ok {
		return p.after
	}
	return 0
}

// client returns the HTTP client. It makes another one when the file of the certificate
// authorities has changed.
func (c *client) client() (*http.Client, error) {
	pem, err := c.access.ca()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http != nil && c.ca == pem {
		return c.http, nil
	}
	transport := c.transport
	if transport == nil {
		config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.access.ServerName, InsecureSkipVerify: c.access.Insecure}
		if pem != "" {
			if config.RootCAs, err = trust.Pool([]byte(pem), c.access.caName()); err != nil {
				return nil, err
			}
		}
		if c.access.Certificate != nil {
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.access.Certificate() }
		}
		transport = &http.Transport{
			DialContext:     (&net.Dialer{Timeout: dialTime}).DialContext,
			TLSClientConfig: config, TLSHandshakeTimeout: dialTime, ResponseHeaderTimeout: headTime, ForceAttemptHTTP2: true,
			HTTP2: &http.HTTP2Config{SendPingTimeout: idleTime, PingTimeout: headTime}, IdleConnTimeout: silence, MaxIdleConnsPerHost: 4,
		}
	}
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
	// A redirect would carry the token elsewhere.
	c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	c.ca = pem
	return c.http, nil
}

// credential returns the token. It is read anew when it has been used for some time, or was
// not accepted: a projected token expires within an hour.
func (c *client) credential(refused bool) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.access.Token == nil {
		return "", nil
	}
	if !refused && c.token != "" && time.Since(c.readAt) < tokenTime {
		return c.token, nil
	}
	token, err := c.access.Token()
	if err != nil {
		return "", err
	}
	c.token, c.readAt = token, time.Now()
	return token, nil
}

// ask sends a GET and returns the body of an answer with status 200.
func (c *client) ask(ctx context.Context, kind Kind, query url.Values) (io.ReadCloser, error) {
	for refused := false; ; refused = true {
		h, err := c.client()
		if err != nil {
			return nil, err
		}
		token, err := c.credential(refused)
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.access.Server, "/")+kind.path(c.namespace)+"?"+query.Encode(), nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Accept", "application/json")
		req.Header.Set("User-Agent", "weir")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := h.Do(req)
		if err != nil {
			if inner, ok := errors.AsType[*url.Error](err); ok {
				err = inner.Err // the address stands in the line already
			}
			return nil, err
		}
		if resp.StatusCode == http.StatusOK {
			return resp.Body, nil
		}
		err = c.explain(kind, resp)
		resp.Body.Close()
		if resp.StatusCode == http.StatusUnauthorized && !refused && token != "" {
			continue
		}
		return nil, err
	}
}

// explain turns an answer into an error that names the remedy.
func (c *client) explain(kind Kind, resp *http.Response) error {
	p := &problem{code: resp.StatusCode}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		p.after = time.Duration(min(seconds, 3600)) * time.Second
	}
	var s status
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	_ = json.Unmarshal(body, &s)
	p.message = c.words(kind, resp.StatusCode, s.Message)
	return p
}

// status is an error of the API server.
type status struct {
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Code    int    `json:"code"`
}

func (c *client) words(kind Kind, code int, message string) string {
	group := resources[kind].group
	if message = strings.Join(strings.Fields(message), " "); len(message) > 300 {
		message = message[:300] + "..."
	}
	switch {
	case code == http.StatusForbidden:
		return fmt.Sprintf(`weir may not list and watch %s in namespace %s: its service account needs a Role with the rule {apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]} (docs/kubernetes.md): %s`, kind, c.namespace, group, kind, message)
	case code == http.StatusUnauthorized:
		return "the API server does not accept weir's token or certificate: " + message
	case code == http.StatusNotFound && kind == Pools:
		return "the API server does not know inference.networking.k8s.io/v1: install the InferencePool resource of the Gateway API Inference Extension, or use kubernetes=service/NAME or kubernetes=pods"
	case code == http.StatusNotFound:
		return fmt.Sprintf("the API server has no %s: it is older than Kubernetes 1.21, or %s is something else", kind, c.access.Server)
	case code == http.StatusGone:
		return "the API server no longer has the version that was watched: " + message
	case code >= 300 && code < 400:
		return fmt.Sprintf("the API server redirects (%d), which weir does not follow", code)
	}
	return fmt.Sprintf("the API server answers %d: %s", code, message)
}

// page is an answer to a list.
type page struct {
	objects        []Object
	token, version string
}

// list asks for a page.
func (c *client) list(ctx context.Context, kind Kind, selectors url.Values, limit int, token string) (_ page, err error) {
	defer infer.Catch(&err, c.panicked)
	ctx, cancel := context.WithTimeoutCause(ctx, listTime, fmt.Errorf("the list of %s took longer than %v", kind, listTime))
	defer cancel()
	query := url.Values{}
	for key, value := range selectors {
		query[key] = value
	}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	if token != "" {
		query.Set("continue", token)
	}
	body, err := c.ask(ctx, kind, query)
	if err == nil {
		defer body.Close()
		var p page
		if p, err = resources[kind].page(&bounded.Reader{R: body, Left: c.maxPage, Err: errTooLong}); err == nil {
			return p, nil
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return page{}, err
}

// object is a pointer to an object of a kind.
type object[T any] interface {
	*T
	Object
}

// decodePage reads an answer to a list of objects of one kind.
func decodePage[T any, P object[T]](r io.Reader) (p page, err error) {
	var l struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Continue        string `json:"continue"`
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items *[]T `json:"items"`
	}
	if err := json.UnmarshalRead(r, &l); err != nil {
		return p, fmt.Errorf("the API server's answer cannot be read: %w", err)
	}
	if !strings.HasSuffix(l.Kind, "List") || l.Metadata.ResourceVersion == "" {
		return p, fmt.Errorf("the API server's answer is no list, but of the kind %q", l.Kind)
	}
	p.token, p.version = l.Metadata.Continue, l.Metadata.ResourceVersion
	if l.Items == nil {
		return p, nil
	}
	p.objects = make([]Object, 0, len(*l.Items))
	for i := range *l.Items {
		o := P(new(T))
		*o = (*l.Items)[i]
		if err := trim(o); err != nil {
			return p, err
		}
		p.objects = append(p.objects, o)
	}
	return p, nil
}

// trim drops what is not read of an object, which is kept for long.
func trim(o Object) error {
	m := o.meta()
	if m.Name == "" {
		return errors.New("the API server's answer has an object without a name")
	}
	if _, pod := o.(*Pod); !pod {
		m.Labels, m.Annotations = nil, nil
		return nil
	}
	for key := range m.Annotations {
		if len(key) > maxName || len(m.Annotations[key]) > maxName {
			delete(m.Annotations, key)
		}
	}
	return nil
}

// event is one of a watch.
type event struct {
	kind    string // ADDED, MODIFIED, DELETED or BOOKMARK
	object  Object
	version string
}

// watch watches from a version on, until the server ends it, which is no error. It calls
// opened when the server has accepted the watch.
func (c *client) watch(ctx context.Context, kind Kind, selectors url.Values, version string, opened func(), take func(event) error) (err error) {
	defer infer.Catch(&err, c.panicked)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A watch that is silent may have been forgotten by the server, or by the network.
	silent := time.AfterFunc(silence, func() {
		cancel(fmt.Errorf("the watch of %s was silent for %v", kind, silence))
	})
	defer silent.Stop()
	query := url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version}, "timeoutSeconds": {strconv.Itoa(int(watchTime / time.Second))}}
	for key, value := range selectors {
		query[key] = value
	}
	body, err := c.ask(ctx, kind, query)
	if err == nil {
		defer body.Close()
		opened()
		err = c.events(kind, body, func(e event) error {
			silent.Reset(silence)
			return take(e)
		})
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return err
}

// events reads the events of a watch until its end.
func (c *client) events(kind Kind, r io.Reader, take func(event) error) error {
	b := &bounded.Reader{R: r, Err: errTooLong}
	d := jsontext.NewDecoder(b)
	for {
		b.Left = maxEvent
		var e struct {
			Type   string         `json:"type"`
			Object jsontext.Value `json:"object"`
		}
		if err := json.UnmarshalDecode(d, &e); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && len(d.UnreadBuffer()) == 0 {
				return nil
			}
			return fmt.Errorf("the watch of %s cannot be read: %w", kind, err)
		}
		if e.Type == "ERROR" {
			var s status
			if err := json.Unmarshal(e.Object, &s); err != nil {
				return fmt.Errorf("the watch of %s has an error that cannot be read: %w", kind, err)
			}
			return &problem{code: s.Code, message: c.words(kind, s.Code, s.Message)}
		}
		o := resources[kind].object()
		if err := json.Unmarshal(e.Object, o); err != nil {
			return fmt.Errorf("the watch of %s cannot be read: %w", kind, err)
		}
		of := event{e.Type, o, o.meta().ResourceVersion}
		switch e.Type {
		case "ADDED", "MODIFIED", "DELETED":
			if err := trim(o); err != nil {
				return err
			}
		case "BOOKMARK":
		default:
			return fmt.Errorf("the watch of %s has an event of the kind %q", kind, e.Type)
		}
		if err := take(of); err != nil {
			return err
		}
	}
}

var errTooLong = errors.New("it is longer than weir takes")
