package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/kubelet/remote"
)

// hostQuestions are what every command takes that asks a host of plugins.
type hostQuestions struct {
	host        string
	output      cli.Format
	environment *pflag.FlagSet // those that may also come from it
}

func (f *hostQuestions) add(c *cobra.Command) {
	f.output = cli.FormatTable
	e := pflag.NewFlagSet("environment", pflag.ContinueOnError)
	addHost(e, &f.host)
	e.VarP(&f.output, "output", "o", "table, json or yaml")
	cli.DescribeEnv(e)
	f.environment = e
	c.PersistentFlags().AddFlagSet(e)
}

// addHost adds the flag that names a host of plugins.
func addHost(fs *pflag.FlagSet, host *string) {
	fs.StringVar(host, "host", defaultHost, "socket of the host of plugins, see cleat host")
}

// askBound is how long a question may take that has its answer at hand.
const askBound = 10 * time.Second

func newPluginsCommand() *cobra.Command {
	var f hostQuestions
	c := &cobra.Command{
		Use:   "plugins",
		Short: "List plugins and devices, ask why a plugin is not registered, wait for one",
		Long: `Asks a host of plugins (start it with cleat host) which plugins it knows, why one
is not registered, when one is, and which devices they offer.

A plugin is named by the name it registers with, as csi.cleat.dev; one that has
not said its name yet by the path of its socket.`,
		Example: `  cleat plugins list
  cleat plugins why csi.cleat.dev
  cleat plugins wait csi.cleat.dev --timeout 2m`,
	}
	f.add(c)
	c.AddCommand(newPluginsListCommand(&f), newPluginsWhyCommand(&f), newPluginsWaitCommand(&f), newPluginsDevicesCommand(&f))
	onlyHolds(c)
	return c
}

// addType adds the flag that chooses plugins of one type.
func addType(c *cobra.Command, kind *string, usage string) {
	c.Flags().StringVar(kind, "type", "", usage)
	cobra.CheckErr(c.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(knownTypes(), cobra.ShellCompDirectiveNoFileComp)))
}

// run connects to the host and asks; bound limits it, 0 is none.
func (f *hostQuestions) run(cmd *cobra.Command, bound time.Duration, ask func(context.Context, *remote.Host) error) error {
	if err := cli.Bind(f.environment, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bound)
		defer cancel()
	}
	h, err := remote.Dial(ctx, f.host)
	if err != nil {
		return err
	}
	return errors.Join(ask(ctx, h), h.Close())
}

// names completes names of plugins, of one type when it is not empty.
func (f *hostQuestions) names(kind string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if err := cli.Bind(f.environment, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return pluginNames(cmd.Context(), f.host, kind, prefix)
	}
}

// pluginNames are completions of a name that a host knows.
func pluginNames(ctx context.Context, host, kind, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	h, err := remote.Dial(ctx, host)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	all, err := h.List(ctx, kind, "")
	if errors.Join(err, h.Close()) != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var fitting []cobra.Completion
	for _, p := range all {
		if p.Name != "" && strings.HasPrefix(p.Name, prefix) {
			fitting = append(fitting, cobra.CompletionWithDesc(p.Name, p.Type+", "+stateOf(p)))
		}
	}
	return fitting, cobra.ShellCompDirectiveNoFileComp
}
