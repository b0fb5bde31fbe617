package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
)

// driverFlags are what every command for people takes: which driver, and how
// to answer.
type driverFlags struct {
	driver       string // its name, for which a host of plugins knows the endpoint
	host         string
	endpoint     string
	nodeEndpoint string
	stateDir     string
	secretsFile  string
	output       cli.Format
	timeout      time.Duration
	environment  *pflag.FlagSet // those that may also come from it
}

// add puts the flags on a command and all below it.
func (f *driverFlags) add(c *cobra.Command) {
	f.output = cli.FormatTable
	e := pflag.NewFlagSet("environment", pflag.ContinueOnError)
	e.StringVar(&f.driver, "driver", "", "name of the CSI driver, of those registered with a host of plugins; instead of --endpoint")
	addHost(e, &f.host)
	e.StringVar(&f.endpoint, "endpoint", defaultEndpoint, "socket of the CSI driver, any driver's")
	e.StringVar(&f.nodeEndpoint, "node-endpoint", "", "socket of its node service, where another process serves that")
	e.VarP(&f.output, "output", "o", "table, json or yaml")
	e.DurationVar(&f.timeout, "timeout", 5*time.Minute, "give up after this time; 0 is never. The driver goes on, and a repeat of the command joins it")
	cobra.CheckErr(cli.EnvAlias(e, "endpoint", "CSI_ENDPOINT"))
	cli.DescribeEnv(e)
	f.environment = e
	fs := c.PersistentFlags()
	fs.AddFlagSet(e)
	// CLEAT_STATE_DIR is the driver's; the two must never meet in one directory.
	fs.StringVar(&f.stateDir, "state-dir", client.DefaultStateDir, "directory for what must be remembered of volumes in use")
	fs.StringVar(&f.secretsFile, "secrets-file", "", "YAML file with names and values that the driver wants as secrets; they are not stored")
	cobra.CheckErr(c.RegisterFlagCompletionFunc("driver", f.driverNames))
}

// run connects to the driver and does the work. On a terminal it says what
// takes so long.
func (f *driverFlags) run(cmd *cobra.Command, doing string, work func(context.Context, *client.Driver) error) error {
	if err := f.bind(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	line := newProgress(cmd.ErrOrStderr(), doing)
	defer line.end()
	d, err := f.dial(ctx, line.notice)
	if err != nil {
		return err
	}
	return errors.Join(work(ctx, d), d.Close())
}

func (f *driverFlags) dial(ctx context.Context, notice func(string)) (*client.Driver, error) {
	config := client.Config{Endpoint: f.endpoint, NodeEndpoint: f.nodeEndpoint, StateDir: f.stateDir, Notice: notice}
	if f.secretsFile != "" {
		text, err := os.ReadFile(f.secretsFile)
		if err != nil {
			return nil, fmt.Errorf("--secrets-file: %w", err)
		}
		if err := yaml.UnmarshalStrict(text, &config.Secrets); err != nil {
			return nil, fmt.Errorf("--secrets-file %s: it must hold names and values, as key: value", f.secretsFile) // the parser's words could hold a secret
		}
	}
	if f.driver != "" {
		var err error
		if config.Endpoint, err = f.find(ctx); err != nil {
			return nil, err
		}
	}
	return client.Dial(ctx, config)
}

// print answers with a table for people or the document for programs.
func (f *driverFlags) print(cmd *cobra.Command, table cli.Table, document any) error {
	return cli.Print(cmd.OutOrStdout(), f.output, table, document)
}

// say answers with a sentence for people or the document for programs.
func (f *driverFlags) say(cmd *cobra.Command, document any, format string, args ...any) error {
	if f.output != cli.FormatTable {
		return f.print(cmd, cli.Table{}, document)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
	return err
}

// names completes arguments of the shell with the names that list returns.
func (f *driverFlags) names(list func(context.Context, *client.Driver) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
		defer cancel()
		if err := f.bind(); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		d, err := f.dial(ctx, func(string) {})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		all, err := list(ctx, d)
		if errors.Join(err, d.Close()) != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var fitting []cobra.Completion
		for _, name := range all {
			if strings.HasPrefix(name, prefix) {
				fitting = append(fitting, name)
			}
		}
		return fitting, cobra.ShellCompDirectiveDefault // a path may follow
	}
}

func volumeNames(ctx context.Context, d *client.Driver) (names []string, err error) {
	all, err := d.List(ctx)
	for _, v := range all {
		names = append(names, v.Name)
	}
	return names, err
}

func snapshotNames(ctx context.Context, d *client.Driver) (names []string, err error) {
	all, err := d.Snapshots(ctx, "")
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names, err
}

func groupNames(ctx context.Context, d *client.Driver) (names []string, err error) {
	all, err := d.Groups(ctx)
	for _, g := range all {
		names = append(names, g.Name)
	}
	return names, err
}

// keyValues reads arguments such as readAheadKiB=512.
func keyValues(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is no parameter: write key=value, as readAheadKiB=512", arg)
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("parameter %s is given twice", key)
		}
		out[key] = value
	}
	return out, nil
}

// exactly is cobra.ExactArgs with a message that shows what is right.
func exactly(words ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(words) {
			return fmt.Errorf("%s takes %s; got %d argument(s). See %s --help", cmd.CommandPath(), strings.Join(words, " and "), len(args), cmd.CommandPath())
		}
		return nil
	}
}

// atLeast is for commands that take the last word several times.
func atLeast(words ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(words) {
			return fmt.Errorf("%s takes %s; got %d argument(s). See %s --help", cmd.CommandPath(), strings.Join(words, " and "), len(args), cmd.CommandPath())
		}
		return nil
	}
}
