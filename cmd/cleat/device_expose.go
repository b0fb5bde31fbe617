package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/dpu/expose"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/spdk"
)

const defaultExposeState = "/run/cleat/expose"

func newDeviceExposeCommand() *cobra.Command {
	var f snapAsk
	var parameters []string
	c := &cobra.Command{
		Use:   "expose DEVICE",
		Short: "Let the host see a device of SNAP",
		Long: `Lets the host see a bdev as an NVMe namespace, or a file system device as one of
virtio-fs: makes in SNAP what that needs, in the order of DPF's node driver, and
plugs it in. It ends when the host has the device, and prints where.

DEVICE is the name that cleat device create printed. It goes onto a function that
is made for it; with --pci onto one that is there and free, with --vuid onto one
that is not plugged in yet.

Repeat the command and it goes on where it was cut off, and prints the same. When a
step fails, what the command made is taken back, unless --keep is given. Do not use
it on devices that a node driver exposes: that would do so again.`,
		Example: `  cleat device expose cleat_nvme_0123456789abcdefn1 --mode block --provider-name snap
  cleat device expose c0123456789abcdef --mode filesystem -o json
  cleat device expose Malloc0 --mode block --snap-socket /var/tmp/spdk.sock --pci 0000:5e:00.2 --controller-parameter num_queues=8`,
		Args: exactly("DEVICE"),
	}
	f.add(c)
	fs := c.Flags()
	fs.Uint32Var(&f.q.NSID, "nsid", 0, "id of the namespace, of block devices; 0: 1, or what it has")
	fs.StringVar(&f.q.UUID, "uuid", "", "UUID of the namespace, of block devices; by default a random one, or what it has")
	fs.StringArrayVar(&parameters, "controller-parameter", nil, "a parameter of nvme_controller_create, KEY=VALUE; may be repeated. Of file systems there is num_request_queues alone")
	fs.BoolVar(&f.q.Keep, "keep", false, "when a step fails, leave what there is for the next time")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		var err error
		if f.q.Parameters, err = expose.Parameters(parameters); err != nil {
			return fmt.Errorf("--controller-parameter: %w", err)
		}
		return f.run(cmd, args[0], "exposing the device", func(ctx context.Context, e *expose.Exposer) error {
			shown, err := e.Expose(ctx, f.q)
			if err != nil {
				return err
			}
			return cli.Print(cmd.OutOrStdout(), f.output, exposedTable(shown), shown)
		})
	}
	return c
}

func exposedTable(d expose.Exposed) cli.Table {
	t := cli.Table{Header: []string{"DEVICE", d.Device}, Rows: [][]string{
		{"Mode", d.Mode},
		{"PCI address", d.PCI},
		{"VUID", d.VUID},
	}}
	if d.Mode == string(request.Filesystem) {
		t.Rows = append(t.Rows, []string{"Virtio-fs device", d.Name}, []string{"Tag", d.Tag})
		return t
	}
	t.Rows = append(t.Rows, []string{"Controller", d.Controller}, []string{"NQN", d.NQN},
		[]string{"Namespace", fmt.Sprint(d.NSID)}, []string{"UUID", d.UUID})
	return t
}

// hiddenDevice is the document of cleat device hide.
type hiddenDevice struct {
	Device string       `json:"device"`
	Mode   request.Mode `json:"mode"`
	Hidden bool         `json:"hidden"`
}

func newDeviceHideCommand() *cobra.Command {
	var f snapAsk
	c := &cobra.Command{
		Use:   "hide DEVICE",
		Short: "Take a device of SNAP away from the host",
		Long: `Takes away what cleat device expose, or DPF's node driver, made of a device: the
host loses it, and nothing of the exposure stays in SNAP. The device stays, for
cleat device rm. Unmount it on the host first.

What is not there is no error. Repeat the command and it goes on where it was cut
off.`,
		Example: `  cleat device hide cleat_nvme_0123456789abcdefn1 --mode block --provider-name snap
  cleat device hide c0123456789abcdef --mode filesystem`,
		Args: exactly("DEVICE"),
	}
	f.add(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		return f.run(cmd, args[0], "hiding the device", func(ctx context.Context, e *expose.Exposer) error {
			if err := e.Hide(ctx, f.q); err != nil {
				return err
			}
			if f.output != cli.FormatTable {
				return cli.Print(cmd.OutOrStdout(), f.output, cli.Table{}, hiddenDevice{f.q.Device, f.q.Mode, true})
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "hidden:", cli.Plain(f.q.Device))
			return err
		})
	}
	return c
}

// snapAsk is what a command takes that asks SNAP itself.
type snapAsk struct {
	socket      string
	provider    string
	mode        string
	stateDir    string
	output      cli.Format
	timeout     time.Duration
	q           expose.Request
	environment *pflag.FlagSet // those that may also come from it
}

func (f *snapAsk) add(c *cobra.Command) {
	f.output = cli.FormatTable
	e := pflag.NewFlagSet("environment", pflag.ContinueOnError)
	e.StringVar(&f.socket, "snap-socket", "", "UNIX socket of the SNAP process; by default that of --provider-name")
	e.StringVar(&f.provider, "provider-name", "", "name of the SNAP process: it is asked where the node driver looks, "+snapDir+"/providers/NAME/snap.sock; empty: NVIDIA's default process")
	e.VarP(&f.output, "output", "o", "table, json or yaml")
	e.DurationVar(&f.timeout, "timeout", 2*time.Minute, "give up after this time; 0 is never. Taking back what was made may take 30 s more")
	cobra.CheckErr(cli.EnvAlias(e, "snap-socket", "SNAP_SOCKET_PATH"))
	cobra.CheckErr(cli.EnvAlias(e, "provider-name", "PROVIDER_NAME"))
	cli.DescribeEnv(e)
	f.environment = e
	fs := c.Flags()
	fs.AddFlagSet(e)
	fs.StringVar(&f.mode, "mode", "", "block or filesystem: what the device is; must be given")
	fs.StringVar(&f.q.PCI, "pci", "", "address of its function, as 0000:5e:00.2; hide needs that only where SNAP does not tell it")
	fs.StringVar(&f.q.VUID, "vuid", "", "VUID of its function; hide needs that only where SNAP does not tell it")
	// CLEAT_STATE_DIR is that of servers.
	fs.StringVar(&f.stateDir, "state-dir", defaultExposeState, "directory for what SNAP does not tell: which function was made for which device")
	_ = c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]cobra.Completion{"block", "filesystem"}, cobra.ShellCompDirectiveNoFileComp))
}

// bind reads the environment and settles what follows from flags. What the
// command line says is stronger, whichever of the two flags it is.
func (f *snapAsk) bind() (err error) {
	socketGiven, nameGiven := f.environment.Changed("snap-socket"), f.environment.Changed("provider-name")
	if socketGiven && nameGiven {
		return errors.New("--snap-socket and --provider-name both say where to ask: give one of them")
	}
	if err := cli.Bind(f.environment, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
		return err
	}
	switch {
	case f.mode == "":
		return errors.New("--mode is missing: say whether the device is block or filesystem")
	case f.timeout < 0:
		return fmt.Errorf("--timeout %s is negative; 0 waits for ever", f.timeout)
	}
	if f.q.Mode, err = parseVolumeMode(f.mode); err != nil {
		return err
	}
	if f.stateDir, err = filepath.Abs(f.stateDir); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	if f.socket != "" && !nameGiven {
		return nil
	}
	if p := f.provider; p != "" && p != filepath.Base(p) || p == "." || p == ".." || p == "/" {
		return fmt.Errorf("--provider-name %q: it is the name of one directory, as snap; name a socket elsewhere with --snap-socket", p)
	}
	f.socket = filepath.Join(snapDir, "providers", f.provider, "snap.sock")
	return nil
}

// run asks SNAP. On a terminal it says what takes so long.
func (f *snapAsk) run(cmd *cobra.Command, device, doing string, ask func(context.Context, *expose.Exposer) error) error {
	if err := f.bind(); err != nil {
		return err
	}
	f.q.Device = device
	rpc, err := spdk.Open(spdk.Config{Socket: f.socket})
	if err != nil {
		return fmt.Errorf("--snap-socket: %w", err)
	}
	e, err := expose.New(expose.Config{RPC: rpc, Dir: f.stateDir})
	if err != nil {
		return errors.Join(err, rpc.Close())
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
	return errors.Join(explainSNAP(ask(ctx, e)), rpc.Close())
}

// explainSNAP adds what to do about an error.
func explainSNAP(err error) error {
	advice := ""
	switch kind := errs.KindOf(err); {
	case err == nil || kind != errs.Unavailable:
	case errors.Is(err, fs.ErrNotExist):
		advice = "is SNAP running? Name it with --provider-name, or its socket with --snap-socket"
	case errors.Is(err, unix.ECONNREFUSED):
		advice = "nobody listens on it any more: is SNAP running?"
	case errors.Is(err, fs.ErrPermission):
		advice = "this user may not use the socket; run it as root"
	default:
		advice = "repeat the command: it goes on where it was"
	}
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, advice)
}
