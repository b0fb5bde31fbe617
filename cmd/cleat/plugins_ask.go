package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/kubelet/watch"
)

func newPluginsListCommand(f *hostQuestions) *cobra.Command {
	var kind string
	var follow bool
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the plugins that a host knows",
		Long: `Lists the plugins that have a socket below the host's directory, registered or
not. Why one is not, cleat plugins why tells.

States: waiting, asking, validating, registering, notifying (steps of an
attempt); registered; failed (tried again); deregistering. One that is dead has
its socket, and nobody answers on it.

With --watch it goes on: a live table on a terminal, elsewhere a line for each
plugin that is registered, fails or goes; with -o json a line for each step.`,
		Example: `  cleat plugins list
  cleat plugins list --type CSIPlugin -o json | jq -r '.[].endpoint'
  cleat plugins list --watch`,
		Args: exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if follow {
				return f.follow(cmd, kind)
			}
			return f.run(cmd, askBound, func(ctx context.Context, h *remote.Host) error {
				all, err := h.List(ctx, kind, "")
				if err != nil {
					return err
				}
				return cli.Print(cmd.OutOrStdout(), f.output, pluginTable(all), all)
			})
		},
	}
	addType(c, &kind, "only those of this type, as CSIPlugin")
	c.Flags().BoolVarP(&follow, "watch", "w", false, "go on and show every change")
	return c
}

// follow shows what changes until it is interrupted.
func (f *hostQuestions) follow(cmd *cobra.Command, kind string) error {
	if f.output == cli.FormatYAML {
		return errors.New("--watch writes table or json, not yaml")
	}
	return f.run(cmd, 0, func(ctx context.Context, h *remote.Host) error {
		info, err := h.Info(ctx)
		if err != nil {
			return err
		}
		out, all := cmd.OutOrStdout(), ofType(kind, h.Watch(ctx))
		terminal, isFile := out.(*os.File)
		switch {
		case f.output == cli.FormatJSON:
			err = writeDocuments(out, all)
		case isFile && cli.IsTerminal(out):
			err = showLive(ctx, cli.NewScreen(terminal), info.Directory, all)
		default:
			err = writeLines(out, all)
		}
		if ctx.Err() != nil { // it was asked to end
			return nil
		}
		return err
	})
}

// ofType leaves out plugins of other types; an empty type fits all. A socket
// that was told of and shows another type now is gone.
func ofType(kind string, all changes) changes {
	return func(yield func(remote.Change, error) bool) {
		told := map[string]bool{}
		for c, err := range all {
			if c.Plugin != nil && kind != "" {
				fits := c.Plugin.Type == kind
				if !fits && !told[c.Plugin.Socket] {
					continue
				}
				if !fits {
					c.Kind = remote.Gone
				}
				if told[c.Plugin.Socket] = c.Kind == remote.Present; !told[c.Plugin.Socket] {
					delete(told, c.Plugin.Socket)
				}
			}
			if !yield(c, err) {
				return
			}
		}
	}
}

// explanation is the document of cleat plugins why.
type explanation struct {
	Text    string         `json:"text"`
	Plugins []watch.Status `json:"plugins"`
}

func newPluginsWhyCommand(f *hostQuestions) *cobra.Command {
	return &cobra.Command{
		Use:   "why [NAME | SOCKET]",
		Short: "Say why a plugin is not registered, and what to do",
		Long: `Says how things are with a plugin: what was tried, what the plugin or the host
said, what that usually means and what to do. Also of a name or a socket that
the host does not know. Without an argument it does so for every plugin that is
not registered.`,
		Example: `  cleat plugins why
  cleat plugins why csi.cleat.dev
  cleat plugins why /run/cleat/plugins/csi.cleat.dev-reg.sock`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: f.names(""),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, askBound, func(ctx context.Context, h *remote.Host) error {
				var e explanation
				var err error
				if len(args) == 1 {
					e.Plugins, e.Text, err = h.Explain(ctx, args[0])
				} else {
					e, err = explainAll(ctx, h)
				}
				if err != nil {
					return err
				}
				if e.Plugins == nil {
					e.Plugins = []watch.Status{}
				}
				if f.output != cli.FormatTable {
					return cli.Print(cmd.OutOrStdout(), f.output, cli.Table{}, e)
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), printable(e.Text))
				return err
			})
		},
	}
}

// explainAll explains every plugin that is not in use.
func explainAll(ctx context.Context, h *remote.Host) (explanation, error) {
	var e explanation
	all, err := h.List(ctx, "", "")
	if err != nil {
		return e, err
	}
	var texts []string
	for _, p := range all {
		if p.Phase == watch.Registered && !p.Dead {
			continue
		}
		found, text, err := h.Explain(ctx, p.Socket)
		if err != nil {
			return e, err
		}
		e.Plugins, texts = append(e.Plugins, found...), append(texts, text)
	}
	switch {
	case len(all) == 0:
		info, err := h.Info(ctx)
		e.Text = "no plugin has a socket below " + info.Directory
		return e, err
	case len(texts) == 0:
		texts = []string{fmt.Sprintf("%s: all are registered", count(len(all), "plugin"))}
	}
	e.Text = strings.Join(texts, "\n\n")
	return e, nil
}

// printable keeps the lines of a text and nothing that could steer a terminal.
func printable(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = cli.Plain(line)
		}
	}
	return strings.Join(lines, "\n")
}

func newPluginsWaitCommand(f *hostQuestions) *cobra.Command {
	var kind string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait until a plugin is registered",
		Long: `Returns when a plugin of this name is registered, at once when it is. When it is
not within the time, the exit code is 1 and the error says what stands in its
way.`,
		Example:           `  cleat plugins wait csi.cleat.dev --timeout 2m && cleat volume list --driver csi.cleat.dev`,
		Args:              exactly("a NAME"),
		ValidArgsFunction: f.names(""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 {
				return fmt.Errorf("--timeout %s is negative; 0 waits for ever", timeout)
			}
			return f.run(cmd, 0, func(ctx context.Context, h *remote.Host) error {
				p, err := h.Wait(ctx, kind, args[0], timeout)
				if err != nil {
					return err
				}
				if f.output != cli.FormatTable {
					return cli.Print(cmd.OutOrStdout(), f.output, cli.Table{}, p)
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), cli.Plain(fmt.Sprintf("%s %s is registered, and serves on %s", p.Type, p.Name, p.Endpoint)))
				return err
			})
		},
	}
	addType(c, &kind, "only one of this type, as CSIPlugin")
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "give up after this time; 0 is never")
	return c
}
