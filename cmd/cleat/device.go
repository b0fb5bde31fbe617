package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
)

func newDeviceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "device",
		Short: "Ask a DPU's storage plugin for devices, as DPF's node driver does",
		Long: `Asks the storage plugin of a DPU for the devices of volumes, as the SNAP node
driver of DPF does: the plugin of cleat dpu, or that of any vendor (--socket, or
--plugin-name for the socket where the node driver looks). A device is a bdev or
a file system device in the SNAP process; a host sees it only when SNAP exposes
it, too.

Every command may be repeated. What the node driver holds is its own: a device
that is removed here is made again when it asks for it next.`,
		Example: `  cleat device probe
  cleat device create pvc-1f0e --mode block --context targetType=tcp --context targetAddr=192.0.2.10 \
    --context targetPort=4420 --context nqn=nqn.2024-01.com.example:vol1
  cleat device get pvc-1f0e
  cleat device rm pvc-1f0e
  cleat device list --plugin-name nvidia-block`,
	}
	c.AddCommand(
		newDeviceProbeCommand(), newDeviceCreateCommand(), newDeviceGetCommand(),
		newDeviceListCommand(), newDeviceRemoveCommand(),
	)
	onlyHolds(c)
	return c
}

// deviceAsk is what every command takes that asks a plugin.
type deviceAsk struct {
	socket      string
	pluginName  string
	output      cli.Format
	timeout     time.Duration
	environment *pflag.FlagSet // those that may also come from it
}

// add puts the flags on one command.
func (f *deviceAsk) add(c *cobra.Command) {
	f.output = cli.FormatTable
	e := pflag.NewFlagSet("environment", pflag.ContinueOnError)
	e.StringVar(&f.socket, "socket", "", "socket of the plugin, any vendor's; by default that of --plugin-name")
	e.StringVar(&f.pluginName, "plugin-name", defaultPlugin, "name of the plugin: it is asked where the node driver looks, "+snapDir+"/plugins/NAME/dpu.sock")
	e.VarP(&f.output, "output", "o", "table, json or yaml")
	e.DurationVar(&f.timeout, "timeout", 2*time.Minute, "give up after this time; 0 is never. The plugin goes on, and a repeat of the command joins it")
	// Those of the plugin itself, so that a shell beside it needs no flag.
	cobra.CheckErr(cli.EnvAlias(e, "socket", "CLEAT_PLUGIN_SOCKET", "PLUGIN_SOCKET_PATH"))
	cobra.CheckErr(cli.EnvAlias(e, "plugin-name", "PLUGIN_NAME"))
	cli.DescribeEnv(e)
	f.environment = e
	c.Flags().AddFlagSet(e)
}

// bind reads the environment and returns the socket to ask on. What the command
// line says is stronger, whichever of the two flags it is.
func (f *deviceAsk) bind() (socket string, err error) {
	socketGiven, nameGiven := f.environment.Changed("socket"), f.environment.Changed("plugin-name")
	if socketGiven && nameGiven {
		return "", errors.New("--socket and --plugin-name both say where to ask: give one of them")
	}
	if err := cli.Bind(f.environment, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
		return "", err
	}
	switch {
	case f.timeout < 0:
		return "", fmt.Errorf("--timeout %s is negative; 0 waits for ever", f.timeout)
	case f.socket != "" && !nameGiven:
		return f.socket, nil
	case f.pluginName != filepath.Base(f.pluginName) || f.pluginName == "." || f.pluginName == ".." || f.pluginName == "/":
		return "", fmt.Errorf("--plugin-name %q: it is the name of one directory, as nvidia-block; name a socket elsewhere with --socket", f.pluginName)
	}
	return filepath.Join(snapDir, "plugins", f.pluginName, "dpu.sock"), nil
}

// session does work that may take so long; 0 is for ever. On a terminal it says
// what takes the time.
func (f *deviceAsk) session(cmd *cobra.Command, doing string, bound time.Duration, work func(ctx context.Context, notice func(string)) error) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bound)
		defer cancel()
	}
	line := newProgress(cmd.ErrOrStderr(), doing)
	defer line.end()
	return work(ctx, line.notice)
}

// devicePlugin is a plugin that a command asks.
type devicePlugin struct {
	*client.Client
	notice func(string)
}

// run connects to the plugin and asks.
func (f *deviceAsk) run(cmd *cobra.Command, doing string, ask func(context.Context, devicePlugin) error) error {
	socket, err := f.bind()
	if err != nil {
		return err
	}
	return f.session(cmd, doing, f.timeout, func(ctx context.Context, notice func(string)) error {
		c, err := client.Dial(ctx, socket)
		if err != nil {
			return explainDevice(err)
		}
		return errors.Join(explainDevice(ask(ctx, devicePlugin{c, notice})), c.Close())
	})
}

// print answers with a table for people or the document for programs.
func (f *deviceAsk) print(cmd *cobra.Command, table cli.Table, document any) error {
	return cli.Print(cmd.OutOrStdout(), f.output, table, document)
}

// say answers with a sentence for people or the document for programs.
func (f *deviceAsk) say(cmd *cobra.Command, document any, sentence string) error {
	if f.output != cli.FormatTable {
		return f.print(cmd, cli.Table{}, document)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), cli.Plain(sentence))
	return err
}

// explainDevice adds what to do about an error.
func explainDevice(err error) error {
	advice := ""
	failed, known := errors.AsType[*client.Error](err)
	switch {
	case !known:
	case failed.Answered():
		advice = deviceAdvice(failed)
	case errors.Is(err, fs.ErrNotExist):
		advice = "is the plugin running? Start cleat dpu, or name the socket of another with --socket, or --plugin-name"
	case errors.Is(err, unix.ECONNREFUSED):
		advice = "nobody listens on it any more: is the plugin running?"
	case errors.Is(err, fs.ErrPermission):
		advice = "this user may not use the socket; run it as root"
	case errors.Is(err, client.ErrNobody), failed.Method != "CreateDevice" && failed.Method != "DeleteDevice":
	default:
		advice = "the plugin may go on with it: repeat the command to join it, or negate a CreateDevice with: cleat device rm"
	}
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, advice)
}

// deviceAdvice is what to do about an answer. The contract has few codes.
func deviceAdvice(e *client.Error) string {
	switch {
	case e.Code == codes.Unimplemented && strings.Contains(e.Message, "unknown service"):
		return "something else than a storage plugin of DPF is served there"
	case e.Code == codes.Unimplemented && e.Method == "ListDevices":
		return "the plugin does not list its devices, as NVIDIA's samples do not; ask for one with: cleat device get VOLUME DEVICE"
	case e.Code == codes.Unimplemented && e.Method == "GetDevice":
		return "the plugin does not tell of its devices; what it announces shows with: cleat device probe"
	case e.Code == codes.Unimplemented && (e.Method == "CreateDevice" || e.Method == "DeleteDevice"):
		return "the plugin makes no devices, or its SNAP process can be given none; what it announces shows with: cleat device probe"
	case e.Code == codes.Unimplemented:
		return "every plugin has to serve that: the node driver can use none without it"
	case e.Code == codes.NotFound && e.Method == "GetDevice":
		return "the volume has none, or one of another name, or SNAP was restarted since; it is made, again too, with: cleat device create"
	case e.Code == codes.Aborted && e.Method == "ListDevices":
		return "the list changed below it: list again"
	case e.Code == codes.Unavailable:
		return "the plugin does not reach what it needs, often SNAP; see: cleat device probe"
	}
	return ""
}

// devices completes the first argument of the shell with the volumes that have
// a device, and the second with the device.
func (f *deviceAsk) devices(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var fitting []cobra.Completion
	err := f.run(cmd, "asking for devices", func(ctx context.Context, p devicePlugin) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		all, err := p.all(ctx, 0)
		for _, e := range all {
			word := e.Volume
			if len(args) == 1 && e.Volume == args[0] {
				word = e.Device
			}
			if len(args) == 0 || len(args) == 1 && e.Volume == args[0] {
				if strings.HasPrefix(word, prefix) {
					fitting = append(fitting, word)
				}
			}
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return fitting, cobra.ShellCompDirectiveNoFileComp
}

// all walks the pages of a list. What a plugin tells twice, since devices came
// and went meanwhile, is in it once.
func (p devicePlugin) all(ctx context.Context, pageSize int32) ([]client.Entry, error) {
	var all []client.Entry
	told, tokens := map[client.Entry]bool{}, map[string]bool{}
	for token := ""; ; {
		page, next, err := p.List(ctx, pageSize, token)
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			if !told[e] {
				all = append(all, e)
			}
			told[e] = true
		}
		if next == "" {
			return all, nil
		}
		if tokens[next] {
			return nil, errs.Errorf(errs.Unavailable, "the list of %s has no end: it gave the same next_token twice", p.Socket())
		}
		tokens[next] = true
		token = next
	}
}
