package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// modelsTimeout bounds the reading of the model list.
const modelsTimeout = 10 * time.Second

// ErrModels is the error of Models if the plan is valid and the server returned no
// list.
var ErrModels = errors.New("the server's models cannot be read")

// Models asks the server of a plan for the names of its models.
func Models(ctx context.Context, plan Plan) ([]string, error) {
	plan.Requests = max(1, plan.Requests) // how much is sent does not matter here
	t, err := plan.normalize()
	if err != nil {
		return nil, err
	}
	c := &client{target: t}
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, modelsTimeout)
	defer cancel()
	names, err := listModels(ctx, c, &plan)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModels, t.models, err)
	}
	return names, nil
}

// firstModel asks the server for its models and gives the first.
func firstModel(ctx context.Context, c *client, p *Plan) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, modelsTimeout)
	defer cancel()
	names, err := listModels(ctx, c, p)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", c.target.models, err)
	}
	if len(names) == 0 {
		return "", fmt.Errorf("%s lists none", c.target.models)
	}
	return names[0], nil
}

// listModels carries out GET /v1/models.
func listModels(ctx context.Context, c *client, p *Plan) ([]string, error) {
	cn, _, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	defer cn.Close()
	stop := context.AfterFunc(ctx, func() { _ = cn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", c.target.models, c.target.host)
	for _, name := range slices.Sorted(maps.Keys(p.Header)) {
		if strings.EqualFold(name, "authorization") || strings.EqualFold(name, "api-key") {
			fmt.Fprintf(&b, "%s: %s\r\n", name, p.Header[name])
		}
	}
	b.WriteString("\r\n")
	if _, err := io.WriteString(cn, b.String()); err != nil {
		return nil, err
	}
	h, err := readHead(&cn.buf)
	if err != nil {
		return nil, err
	}
	if h.status != 200 {
		return nil, fmt.Errorf("status %d", h.status)
	}
	body := h.body(&cn.buf)
	var text []byte
	for {
		data, err := body.next()
		text = append(text, data...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(text) > maxBody {
			return nil, fmt.Errorf("more than %d bytes", maxBody)
		}
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(list.Data))
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names, nil
}
