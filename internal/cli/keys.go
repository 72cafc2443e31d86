package cli

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"weir/internal/config"
	"weir/internal/config/keyfile"
)

type keysCommand struct {
	Add    keysAddCommand    `cmd:"" help:"Make a key, print it once, and add its hash to the keys file."`
	List   keysListCommand   `cmd:"" help:"List the keys of a keys file."`
	Revoke keysRevokeCommand `cmd:"" help:"Remove a key from the keys file."`
}

// Help implements kong's extended help.
func (keysCommand) Help() string {
	return `Examples:
  weir keys add alice --keys keys.yaml --tenant research
  weir keys add batch --keys keys.yaml --tenant research --models llama --tokens-per-day 5000000
  weir keys add me --keys admin.yaml --role operate
  weir keys list --keys keys.yaml
  weir keys revoke alice --keys keys.yaml

A gateway with --keys FILE reads the file again within a second after these commands have changed it (docs/keys.md).`
}

// keysFile names a keys file.
type keysFile struct {
	Keys string `required:"" type:"path" placeholder:"FILE" help:"The keys file, as for weir serve --keys or --admin-keys."`
}

type keysAddCommand struct {
	keysFile
	Name   string `arg:"" help:"Name of the key, which logs and metrics show."`
	Role   string `env:"-" enum:",read,operate" default:"" help:"Make a key for the admin listener: read (look only) or operate (also change)."`
	Tenant string `env:"-" help:"Tenant that the key belongs to. Otherwise the key is a tenant of its own."`
	Models string `env:"-" placeholder:"NAME,..." help:"Models that the key may use. Otherwise all."`
	Band   string `env:"-" help:"Band of the tenant, as in weir serve --band (docs/fairness.md)."`
	Share  string `env:"-" placeholder:"N" help:"Weight among the tenants of the band, from 1."`

	MaxRequests       int   `env:"-" placeholder:"N" help:"Largest number of requests at once."`
	RequestsPerMinute int   `env:"-" placeholder:"N" help:"Largest number of requests a minute."`
	TokensPerMinute   int   `env:"-" placeholder:"N" help:"Largest number of tokens a minute, of prompts and answers."`
	TokensPerDay      int64 `env:"-" placeholder:"N" help:"Largest number of tokens a day (UTC)."`
	MaxPromptTokens   int   `env:"-" placeholder:"N" help:"Longest prompt, in tokens."`
	MaxOutputTokens   int   `env:"-" placeholder:"N" help:"Longest answer, in tokens."`
}

// Run implements the command.
func (c *keysAddCommand) Run(s *streams) error {
	key, hash := keyfile.NewKey()
	var block bytes.Buffer
	fmt.Fprintf(&block, "  %s:\n    hash: %s\n", strconv.Quote(c.Name), hash)
	for _, field := range []struct{ name, value string }{
		{"role", c.Role}, {"tenant", quoted(c.Tenant)}, {"band", quoted(c.Band)}, {"share", c.Share},
		{"max_requests", number(int64(c.MaxRequests))}, {"requests_per_minute", number(int64(c.RequestsPerMinute))},
		{"tokens_per_minute", number(int64(c.TokensPerMinute))}, {"tokens_per_day", number(c.TokensPerDay)},
		{"max_prompt_tokens", number(int64(c.MaxPromptTokens))}, {"max_output_tokens", number(int64(c.MaxOutputTokens))},
	} {
		if field.value != "" {
			fmt.Fprintf(&block, "    %s: %s\n", field.name, field.value)
		}
	}
	if c.Models != "" {
		block.WriteString("    models:\n")
		for _, name := range words([]string{c.Models}) {
			fmt.Fprintf(&block, "      - %s\n", strconv.Quote(name))
		}
	}
	err := keyfile.Update(c.Keys, c.Role != "", func(lines []string, file *keyfile.File, root *config.Section) ([]string, error) {
		if file.Has(c.Name) {
			return nil, fmt.Errorf("there is a key %q already; revoke it first, or choose another name", c.Name)
		}
		at := root.Find("keys")
		if at == nil {
			return append(lines, "keys:", strings.TrimSuffix(block.String(), "\n")), nil
		}
		if at.Section != nil && len(at.Section.Entries) == 0 {
			lines[at.Line-1] = "keys:"
		} else if at.Section == nil || at.Section.Entries[0].Line == at.Line {
			return nil, fmt.Errorf("line %d: keys: give each key lines of its own, below keys:, so that another can be added", at.Line)
		}
		return slices.Insert(lines, at.Line, strings.TrimSuffix(block.String(), "\n")), nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(s.err, "This is the key. It is shown this once; the file has its hash:")
	if _, err := fmt.Fprintln(s.out, key); err != nil { // nobody will ever know the key
		return errors.Join(fmt.Errorf("the key cannot be printed, so it was not added: %w", err), revoke(c.Keys, c.Role != "", c.Name))
	}
	return nil
}

func quoted(s string) string {
	if s == "" {
		return ""
	}
	return strconv.Quote(s)
}

// number writes a limit; 0 was not given.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

type keysListCommand struct {
	keysFile
	Admin bool `env:"-" help:"The file is one of operators (--admin-keys)."`
}

// Run implements the command.
func (c *keysListCommand) Run(s *streams) error {
	file, err := keyfile.ReadFile(c.Keys, c.Admin)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	if c.Admin {
		fmt.Fprintln(w, "KEY\tROLE\tHASH")
	} else {
		fmt.Fprintln(w, "KEY\tTENANT\tBAND\tSHARE\tMODELS\tLIMITS\tHASH")
	}
	for _, k := range file.Keys() {
		if c.Admin {
			fmt.Fprintf(w, "%s\t%s\t%s\n", k.Caller.Key, k.Role, k.Hash.String()[:15])
			continue
		}
		models := "all"
		if k.Caller.Models != nil {
			models = strings.Join(k.Caller.Models, ",")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%g\t%s\t%s\t%s\n", k.Caller.Key, k.Caller.Tenant, k.Caller.Band, k.Caller.Share, models, k.Limits(), k.Hash.String()[:15])
	}
	return w.Flush()
}

type keysRevokeCommand struct {
	keysFile
	Name  string `arg:"" help:"Name of the key."`
	Admin bool   `env:"-" help:"The file is one of operators (--admin-keys)."`
}

// Run implements the command.
func (c *keysRevokeCommand) Run(s *streams) error {
	if err := revoke(c.Keys, c.Admin, c.Name); err != nil {
		return err
	}
	sayLine(s.out, "revoked %s; requests that are under way with it go on", c.Name)
	return nil
}

// revoke removes a key from a keys file.
func revoke(path string, admin bool, name string) error {
	return keyfile.Update(path, admin, func(lines []string, file *keyfile.File, root *config.Section) ([]string, error) {
		return keyfile.Remove(lines, file, root, name)
	})
}
