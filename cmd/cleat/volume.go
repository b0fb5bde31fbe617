package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/handler/csi"
	"github.com/cleatproject/cleat/kubelet/remote"
)

func newVolumeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "volume",
		Short: "Create, attach and delete volumes of any CSI driver",
		Long: `Calls any CSI driver on its socket, as Kubernetes does: cleat's own (cleat csi) or
another one (--endpoint, or --driver if it is registered with cleat host). State
needed for a rollback or a retry is recorded in --state-dir.

VOLUME is the name with which the volume was created, or the driver's volume ID.
All commands are idempotent, and continue an interrupted operation.`,
		Example: `  cleat volume create data --size 1GiB
  cleat volume attach data /mnt
  cleat volume snapshot data --name before-upgrade
  cleat volume expand data 2GiB
  cleat volume detach data
  cleat volume restore before-upgrade data-as-it-was
  cleat volume delete data
  cleat volume list --driver csi.cleat.dev      # where cleat host has registered it
  cleat volume list --endpoint unix:///var/lib/kubelet/plugins/hostpath.csi.k8s.io/csi.sock`,
	}
	f := newDriverFlags(c)
	return f.group(c,
		newVolumeCreateCommand(f), newVolumeRestoreCommand(f), newVolumeCloneCommand(f),
		newVolumeListCommand(f), newVolumeShowCommand(f),
		newVolumeAttachCommand(f), newVolumeDetachCommand(f),
		newVolumeExpandCommand(f), newVolumeModifyCommand(f), newVolumeTrimCommand(f),
		newVolumeStatsCommand(f), newVolumeHealthCommand(f),
		newSnapshotCreateCommand(f, "snapshot", "  cleat volume snapshot data --name before-upgrade"), newChangedBlocksCommand(f),
		newVolumeDeleteCommand(f), newVolumeDriverCommand(f),
	)
}

type driverFlags struct {
	session
	driver      string // known to the plugin host
	host        string
	config      client.Config
	secretsFile string
}

func newDriverFlags(c *cobra.Command) *driverFlags {
	f := &driverFlags{}
	fs := c.PersistentFlags()
	f.add(fs, func(e *pflag.FlagSet) {
		e.StringVar(&f.driver, "driver", "", "name of a CSI driver registered with the plugin host; instead of --endpoint")
		addHost(e, &f.host)
		e.StringVar(&f.config.Endpoint, "endpoint", defaultEndpoint, "socket of any CSI driver")
		e.StringVar(&f.config.NodeEndpoint, "node-endpoint", "", "socket of the node service, if another process serves it")
		e.DurationVar(&f.timeout, "timeout", 5*time.Minute, "time limit; 0 means none. After a timeout the driver continues, and the command can be repeated. "+startUsage)
		cobra.CheckErr(cli.EnvAlias(e, "endpoint", "CSI_ENDPOINT"))
	})
	// Not read from CLEAT_STATE_DIR, which is the driver's: the two directories must differ.
	fs.StringVar(&f.config.StateDir, "state-dir", client.DefaultStateDir, "state directory of these commands, with the volumes in use")
	fs.StringVar(&f.secretsFile, "secrets-file", "", "YAML file with the CSI secrets of the driver as key: value; they are not stored")
	cobra.CheckErr(c.RegisterFlagCompletionFunc("driver", complete(cobra.ShellCompDirectiveNoFileComp, func(cmd *cobra.Command, _ []string) ([]string, error) {
		return pluginNames(cmd.Context(), f.host, csi.Type, f.bind())
	})))
	return f
}

// bind reads the environment and refuses conflicting settings. A flag overrides
// the conflicting variable.
func (f *driverFlags) bind() error {
	driver, endpoint := f.env.Lookup("driver"), f.env.Lookup("endpoint")
	byDriver, byEndpoint := driver.Changed, endpoint.Changed
	if byDriver && byEndpoint {
		return errors.New("--driver and --endpoint are mutually exclusive: set one of them")
	}
	if err := f.session.bind(); err != nil {
		return err
	}
	switch {
	case byEndpoint:
		f.driver = ""
	case !byDriver && driver.Changed && endpoint.Changed:
		return errors.New("CLEAT_DRIVER and CLEAT_ENDPOINT (or CSI_ENDPOINT) are mutually exclusive: unset one, or set --driver or --endpoint")
	}
	return nil
}

func (f *driverFlags) dial(ctx context.Context, notice func(string)) (*client.Driver, error) {
	config := f.config
	config.Notice = notice
	if f.secretsFile != "" {
		text, err := os.ReadFile(f.secretsFile)
		if err != nil {
			return nil, fmt.Errorf("--secrets-file: %w", err)
		}
		if err := yaml.UnmarshalStrict(text, &config.Secrets); err != nil { // its text can contain a secret
			return nil, fmt.Errorf("--secrets-file %s: invalid YAML: expected key: value lines", f.secretsFile)
		}
	}
	if f.driver != "" {
		err := f.untilServed(ctx, notice, isUnregistered, func(ctx context.Context) (err error) {
			config.Endpoint, err = f.lookup(ctx)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("--driver %s: %w", f.driver, err)
		}
	}
	if err := f.awaitDriver(ctx, notice, config.Endpoint); err != nil {
		return nil, err
	}
	config.Patience = f.starting
	return client.Dial(ctx, config)
}

func (f *driverFlags) lookup(ctx context.Context) (endpoint string, err error) {
	h, err := remote.Dial(ctx, f.host)
	if err != nil {
		return "", err
	}
	p, err := h.Lookup(ctx, csi.Type, f.driver)
	return p.Endpoint, errors.Join(err, h.Close())
}

// isUnregistered: the host does not know the name, which a driver that starts can
// still register.
func isUnregistered(err error) bool {
	answer, answered := errors.AsType[*remote.Error](err)
	return answered && answer.Code == codes.NotFound
}

// awaitDriver waits for the socket of a driver that starts. client.Dial then waits
// until the driver is ready.
func (f *driverFlags) awaitDriver(ctx context.Context, notice func(string), endpoint string) error {
	path, err := unixsock.ParseEndpoint(endpoint)
	if err != nil {
		return err
	}
	return f.untilServed(ctx, notice, nil, func(ctx context.Context) error {
		conn, err := unixsock.Dial(ctx, path)
		if err != nil {
			advice := noServer(err, "the driver", "Start cleat's own with: cleat csi")
			return errs.Errorf(errs.Unavailable, "no CSI driver answers on %s: %w", endpoint, advise(err, advice))
		}
		return conn.Close()
	})
}

type driverCall func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error)

func (f *driverFlags) runE(doing string, call driverCall) func(*cobra.Command, []string) error {
	return callServer(&f.session, f.bind, f.dial, doing, call)
}

func (f *driverFlags) group(c *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	for _, sub := range commands {
		sub.ValidArgsFunction = f.completeArgument(sub.Use)
	}
	c.AddCommand(commands...)
	setUpGroup(c)
	return c
}

// completeArgument completes the names of objects, and paths.
func (f *driverFlags) completeArgument(use string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		argument := argumentAt(use, len(args))
		names, directive := complete(cobra.ShellCompDirectiveNoFileComp, func(cmd *cobra.Command, args []string) (names []string, err error) {
			if !slices.Contains([]string{"VOLUME", "VOLUME|PATH", "SNAPSHOT", "BASE", "GROUP"}, argument) {
				return nil, nil
			}
			err = f.runE("", func(ctx context.Context, d *client.Driver, _ []string) (_ cli.View, _ any, err error) {
				names, err = namesFor(ctx, d, argument)
				return nil, nil, err
			})(cmd, args)
			return names, err
		})(cmd, args, prefix)
		if strings.Contains(argument, "PATH") { // also if the driver does not answer
			directive = cobra.ShellCompDirectiveDefault
		}
		return names, directive
	}
}

// argumentAt returns the word of a use line for an argument, without brackets
// and dots; "" after the last one.
func argumentAt(use string, n int) string {
	words := strings.Fields(use)[1:]
	if last := len(words) - 1; n > last && last >= 0 && strings.Contains(words[last], "...") {
		n = last
	}
	if n >= len(words) {
		return ""
	}
	return strings.Trim(words[n], "[].")
}

// namesFor lists objects of the type of an argument.
func namesFor(ctx context.Context, d *client.Driver, argument string) (names []string, err error) {
	switch argument {
	case "GROUP":
		all, err := d.Groups(ctx)
		for _, g := range all {
			names = append(names, g.Name)
		}
		return names, err
	case "SNAPSHOT", "BASE":
		all, err := d.Snapshots(ctx, "")
		for _, s := range all {
			names = append(names, s.Name)
		}
		return names, err
	}
	all, err := d.List(ctx)
	for _, v := range all {
		if v.State == client.StateForeign { // commands need its ID
			v.Name = v.ID
		}
		names = append(names, v.Name)
	}
	return names, err
}

func newVolumeDriverCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "driver",
		Short:   "Show the driver's identity and capabilities",
		Example: `  cleat volume driver --endpoint unix:///csi/csi.sock`,
		RunE: f.runE("querying the driver", func(_ context.Context, d *client.Driver, _ []string) (cli.View, any, error) {
			i := d.Info()
			t := cli.Table{Header: []string{"DRIVER", i.Name}}
			t.Add("Version", i.Version)
			t.Add("Node", i.Node)
			t.Add("Topology", i.Topology)
			t.Add("Plugin", i.Plugin)
			t.Add("Controller", i.Controller)
			t.Add("Group controller", i.Group)
			t.Add("Node service", i.NodeRPCs)
			return t, i, nil
		}),
	}
}
