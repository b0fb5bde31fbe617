package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/kubelet/watch"
)

func newPluginsCommand() *cobra.Command {
	var f hostFlags
	c := &cobra.Command{
		Use:   "plugins",
		Short: "List registered plugins and devices, explain and await registrations",
		Long: `Queries a plugin host (cleat host). Plugins are identified by the name that they
register, such as csi.cleat.dev, or by the path of their socket while the name is
unknown.`,
		Example: `  cleat plugins list
  cleat plugins why csi.cleat.dev
  cleat plugins wait csi.cleat.dev --timeout 2m`,
	}
	f.add(c.PersistentFlags(), func(e *pflag.FlagSet) {
		addHost(e, &f.host)
		e.DurationVar(&f.timeout, "timeout", startTime, "time limit, also for a host that starts; 0 means none. If not set, 1m for wait. With list --watch only until the host answers")
	})
	c.AddCommand(newPluginsListCommand(&f), newPluginsWhyCommand(&f), newPluginsWaitCommand(&f), newPluginsDevicesCommand(&f))
	setUpGroup(c)
	return c
}

type hostFlags struct {
	session
	host string
}

func addHost(fs *pflag.FlagSet, host *string) {
	fs.StringVar(host, "host", defaultHost, "socket of the plugin host, see cleat host")
}

func addType(c *cobra.Command, kind *string, usage string) {
	c.Flags().StringVar(kind, "type", "", usage)
	cli.Enumerate(c.Flags(), "type", knownTypes()...)
}

type hostCall func(ctx context.Context, h *remote.Host, args []string) (cli.View, any, error)

func (f *hostFlags) runE(call hostCall) func(*cobra.Command, []string) error {
	return callServer(&f.session, f.bind, f.dial, "", call)
}

// dial waits for a host that starts.
func (f *hostFlags) dial(ctx context.Context, notice func(string)) (h *remote.Host, err error) {
	err = f.untilServed(ctx, notice, nil, func(ctx context.Context) (err error) {
		h, err = remote.Dial(ctx, f.host)
		return err
	})
	return h, err
}

// bindUnlimited is bind for a call that waits for changes: --timeout, with this
// default, limits only the wait for the host.
func (f *hostFlags) bindUnlimited(timeout time.Duration) func() error {
	return func() error {
		err := f.bind()
		if f.env.Changed("timeout") {
			timeout = f.timeout
		}
		f.timeout, f.starting = 0, cmp.Or(timeout, noLimit)
		return err
	}
}

func (f *hostFlags) names(kind string) cobra.CompletionFunc {
	return complete(cobra.ShellCompDirectiveNoFileComp, func(cmd *cobra.Command, args []string) ([]string, error) {
		if len(args) > 0 {
			return nil, nil
		}
		return pluginNames(cmd.Context(), f.host, kind, f.bind())
	})
}

func pluginNames(ctx context.Context, host, kind string, bound error) (words []string, err error) {
	if bound != nil {
		return nil, bound
	}
	h, err := remote.Dial(ctx, host)
	if err != nil {
		return nil, err
	}
	all, err := h.List(ctx, kind, "")
	for _, p := range all {
		if p.Name != "" {
			words = append(words, cobra.CompletionWithDesc(p.Name, p.Type+", "+stateOf(p)))
		}
	}
	return words, errors.Join(err, h.Close())
}

func newPluginsListCommand(f *hostFlags) *cobra.Command {
	var kind string
	var follow bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the plugins of a plugin host",
		Long: `Lists the plugins that have a socket below the host's directory, registered or not.
"cleat plugins why" explains those that are not.

States: waiting, asking, validating, registering, notifying (steps of an attempt);
registered; failed (retried); deregistering. The socket of a dead plugin exists,
but no process serves it or the plugin's endpoint.

With --watch it continues: a live table on a terminal, elsewhere a line when a
plugin is registered, fails or is removed; with -o json a line per state change.`,
		Example: `  cleat plugins list
  cleat plugins list --type CSIPlugin -o json | jq -r '.[].endpoint'
  cleat plugins list --watch`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if follow {
				return f.follow(cmd, kind)
			}
			var partial error
			err := f.runE(func(ctx context.Context, h *remote.Host, _ []string) (cli.View, any, error) {
				all, err := h.List(ctx, kind, "")
				if err == nil {
					partial = knowsAll(ctx, h)
				}
				t := cli.Table{Header: []string{"NAME", "TYPE", "STATE", "SINCE", "VERSIONS", "ENDPOINT", "SOCKET"}}
				for _, p := range all {
					t.Add(p.Name, p.Type, stateOf(p), p.Since, strings.Join(p.Versions, ","), p.Endpoint, p.Socket)
				}
				return t, all, err
			})(cmd, args)
			return errors.Join(err, partial)
		},
	}
	addType(c, &kind, "only plugins of this type, such as CSIPlugin")
	c.Flags().BoolVarP(&follow, "watch", "w", false, "continue and show changes")
	return c
}

// knowsAll fails while the host cannot read its directory.
func knowsAll(ctx context.Context, h *remote.Host) error {
	info, err := h.Info(ctx)
	if err == nil && info.Error != "" {
		err = fmt.Errorf("the host might not know all plugins: %s", info.Error)
	}
	return err
}

func stateOf(p watch.Status) string {
	if p.Dead {
		return string(p.Phase) + ", dead"
	}
	return string(p.Phase)
}

func (f *hostFlags) follow(cmd *cobra.Command, kind string) error {
	if f.output == cli.FormatYAML {
		return errors.New("--watch does not support -o yaml: use table or json")
	}
	return callServer(&f.session, f.bindUnlimited(startTime), f.dial, "", func(ctx context.Context, h *remote.Host, _ []string) (cli.View, any, error) {
		info, err := h.Info(ctx)
		if err != nil {
			return nil, nil, err
		}
		out, all := cmd.OutOrStdout(), ofType(kind, h.Watch(ctx))
		switch {
		case f.output == cli.FormatJSON:
			err = writeDocuments(out, all)
		case cli.IsTerminal(out):
			err = showLive(ctx, cli.NewScreen(out.(*os.File)), info.Directory, all)
		default:
			err = writeLines(out, all)
		}
		if ctx.Err() != nil { // interrupted
			err = nil
		}
		return nil, nil, err
	})(cmd, nil)
}

type explanation struct {
	Text    string         `json:"text"`
	Plugins []watch.Status `json:"plugins"`
}

func newPluginsWhyCommand(f *hostFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "why [NAME|SOCKET]",
		Short: "Explain why a plugin is not registered, and how to fix it",
		Long: `Explains the state of a plugin, also of one that the host does not know: the calls
made, the responses, and how to fix the cause. Without an argument it explains
every plugin that is not registered.`,
		Example: `  cleat plugins why
  cleat plugins why csi.cleat.dev
  cleat plugins why /run/cleat/plugins/csi.cleat.dev-reg.sock`,
		ValidArgsFunction: f.names(""),
		RunE: f.runE(func(ctx context.Context, h *remote.Host, args []string) (cli.View, any, error) {
			e := explanation{Plugins: []watch.Status{}}
			if len(args) == 1 {
				found, text, err := h.Explain(ctx, args[0])
				e.Plugins, e.Text = append(e.Plugins, found...), text
				return cli.Text(text), e, err
			}
			err := e.addAll(ctx, h)
			return cli.Text(e.Text), e, err
		}),
	}
}

// addAll adds plugins that are dead or not registered.
func (e *explanation) addAll(ctx context.Context, h *remote.Host) error {
	all, err := h.List(ctx, "", "")
	if err != nil {
		return err
	}
	var texts []string
	for _, p := range all {
		if p.Phase == watch.Registered && !p.Dead {
			continue
		}
		found, text, err := h.Explain(ctx, p.Socket)
		if err != nil {
			return err
		}
		e.Plugins, texts = append(e.Plugins, found...), append(texts, text)
	}
	if err := knowsAll(ctx, h); err != nil {
		texts = append(texts, err.Error())
	}
	e.Text = strings.Join(texts, "\n\n")
	switch {
	case len(texts) > 0:
	case len(all) == 0:
		info, err := h.Info(ctx)
		e.Text = "no plugin has a socket below " + info.Directory
		return err
	default:
		e.Text = fmt.Sprintf("%s: all are registered", count(len(all), "plugin"))
	}
	return nil
}

func newPluginsWaitCommand(f *hostFlags) *cobra.Command {
	var kind string
	c := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait until a plugin is registered",
		Long: `Waits until a plugin with this name is registered and served, also while the host
starts or restarts. The error after a timeout explains why it is not.`,
		Example:           `  cleat plugins wait csi.cleat.dev --timeout 2m && cleat volume list --driver csi.cleat.dev`,
		ValidArgsFunction: f.names(""),
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		begun := time.Now()
		return callServer(&f.session, f.bindUnlimited(time.Minute), f.dial, "", func(ctx context.Context, h *remote.Host, args []string) (_ cli.View, _ any, err error) {
			var p watch.Status
			left := func() time.Duration { return f.starting - time.Since(begun) }
			restarts := func(err error) bool { return errors.Is(err, remote.ErrNoHost) && left() > 0 }
			err = f.untilServed(ctx, func(string) {}, restarts, func(ctx context.Context) (err error) {
				p, err = h.Wait(ctx, kind, args[0], max(left(), time.Millisecond))
				return err
			})
			return cli.Textf("%s %s is registered, and serves on %s", p.Type, p.Name, p.Endpoint), p, err
		})(cmd, args)
	}
	addType(c, &kind, "only a plugin of this type, such as CSIPlugin")
	return c
}

func newPluginsDevicesCommand(f *hostFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "devices [RESOURCE]",
		Short: "List the devices that device plugins offer",
		Long: `Lists the devices that each plugin last reported. A plugin whose ListAndWatch
stream has ended has no healthy device.`,
		Example: `  cleat plugins devices
  cleat plugins devices example.com/gpu -o json`,
		ValidArgsFunction: f.names(device.Type),
		RunE: f.runE(func(ctx context.Context, h *remote.Host, args []string) (cli.View, any, error) {
			all, err := h.Devices(ctx, strings.Join(args, ""))
			return deviceTable(all), all, err
		}),
	}
}

// deviceTable also has a row per resource without devices.
func deviceTable(all []remote.Resource) cli.Table {
	t := cli.Table{Header: []string{"RESOURCE", "DEVICE", "HEALTH", "NUMA", "HOLDER", "NOTE"}}
	for _, r := range all {
		if len(r.Devices) == 0 {
			t.Add(r.Name, "", "", "", "", r.Error)
		}
		for _, d := range r.Devices {
			health := "unhealthy"
			if d.Healthy {
				health = "healthy"
			}
			numa := strings.Trim(strings.ReplaceAll(fmt.Sprint(d.NUMA), " ", ","), "[]")
			t.Add(r.Name, d.ID, health, numa, d.Holder, r.Error)
		}
	}
	return t
}
