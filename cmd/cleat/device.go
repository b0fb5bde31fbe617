package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
)

func newDeviceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "device",
		Short: "Call a DPU's storage plugin, as DPF's node driver does",
		Long: `Asks the storage plugin of a DPU for the devices of volumes, as the SNAP node
driver of DPF does: cleat dpu, or the plugin of any vendor (--socket, or
--plugin-name for the socket where the node driver looks). A device is a bdev or a
file system device in the SNAP process; a host sees it only when SNAP exposes it,
too.

Every command can be repeated. A device that is removed here is created again when
the node driver asks for it next.`,
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

// deviceAsk has the flags of the commands that ask a plugin.
type deviceAsk struct {
	session
	socket     string
	pluginName string
}

func (f *deviceAsk) addTo(c *cobra.Command) {
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.StringVar(&f.socket, "socket", "", "socket of the plugin, any vendor's; by default that of --plugin-name")
		e.StringVar(&f.pluginName, "plugin-name", defaultPlugin, "name of the plugin: it is asked where the node driver looks, "+snapDir+"/plugins/NAME/dpu.sock")
		e.DurationVar(&f.timeout, "timeout", 2*time.Minute, "give up after this time; 0 is never. The plugin goes on, and a repeat of the command joins it")
		// Those of the plugin itself, so that a shell beside it needs no flag.
		cobra.CheckErr(cli.EnvAlias(e, "socket", "CLEAT_PLUGIN_SOCKET", "PLUGIN_SOCKET_PATH"))
		cobra.CheckErr(cli.EnvAlias(e, "plugin-name", "PLUGIN_NAME"))
	})
}

// bind reads the environment and settles the socket. A flag overrides the
// environment, whichever of the two flags it is.
func (f *deviceAsk) bind() error {
	nameGiven := f.env.Changed("plugin-name")
	if nameGiven && f.env.Changed("socket") {
		return errors.New("--socket and --plugin-name both say where to ask: give one of them")
	}
	if err := f.session.bind(); err != nil {
		return err
	}
	if f.socket != "" && !nameGiven {
		return nil
	}
	if n := f.pluginName; n != filepath.Base(n) || n == "." || n == ".." || n == "/" {
		return fmt.Errorf("--plugin-name %q: it is the name of one directory, as nvidia-block; name a socket elsewhere with --socket", n)
	}
	f.socket = filepath.Join(snapDir, "plugins", f.pluginName, "dpu.sock")
	return nil
}

// deviceCall asks a plugin and returns the result for users and for programs.
type deviceCall func(ctx context.Context, p devicePlugin, args []string) (cli.View, any, error)

// devicePlugin is a plugin that a command asks.
type devicePlugin struct {
	*client.Client
	notice func(string)
}

// ask makes a command of a call.
func (f *deviceAsk) ask(doing string, call deviceCall) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := f.bind(); err != nil {
			return err
		}
		return f.run(cmd, doing, func(ctx context.Context, notice func(string)) error {
			c, err := client.Dial(ctx, f.socket)
			if err != nil {
				return explainDevice(err)
			}
			view, document, err := call(ctx, devicePlugin{c, notice}, args)
			return errors.Join(f.answer(cmd, view, document, explainDevice(err)), c.Close())
		})
	}
}

// explainDevice adds advice to an error.
func explainDevice(err error) error {
	failed, known := errors.AsType[*client.Error](err)
	if !known {
		return err
	}
	changes := failed.Method == "CreateDevice" || failed.Method == "DeleteDevice"
	if failed.Answered() {
		return advise(err, deviceAdvice(failed.Code, failed.Method, failed.Message, changes))
	}
	advice := noServer(err, "the plugin", "Start cleat dpu, or name the socket of another with --socket, or --plugin-name")
	if advice == "" && changes && !errors.Is(err, client.ErrNobody) {
		advice = "the plugin may go on with it: repeat the command to join it, or negate a CreateDevice with: cleat device rm"
	}
	return advise(err, advice)
}

// deviceAdvice is the advice for an answer: the contract has few codes.
func deviceAdvice(code codes.Code, method, message string, changes bool) string {
	unserved := code == codes.Unimplemented
	switch {
	case unserved && strings.Contains(message, "unknown service"):
		return "something else than a storage plugin of DPF is served there"
	case unserved && method == "ListDevices":
		return "the plugin does not list its devices, as NVIDIA's samples do not; ask for one with: cleat device get VOLUME DEVICE"
	case unserved && method == "GetDevice":
		return "the plugin does not tell of its devices; what it announces shows with: cleat device probe"
	case unserved && changes:
		return "the plugin makes no devices, or its SNAP process can be given none; what it announces shows with: cleat device probe"
	case unserved:
		return "every plugin has to serve that: the node driver can use none without it"
	case code == codes.NotFound && method == "GetDevice":
		return "the volume has none, or one of another name, or SNAP was restarted since; it is made, again too, with: cleat device create"
	case code == codes.Aborted && method == "ListDevices":
		return "the list changed below it: list again"
	case code == codes.Unavailable:
		return "the plugin does not reach what it needs, often SNAP; see: cleat device probe"
	}
	return ""
}

// complete completes the first argument with the volumes that have a device, and
// the second with the device.
func (f *deviceAsk) complete(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	cmd.SetContext(ctx)
	var words []string
	err := f.ask("", func(ctx context.Context, p devicePlugin, _ []string) (cli.View, any, error) {
		all, err := p.all(ctx, 0)
		for _, e := range all {
			switch {
			case len(args) == 0:
				words = append(words, e.Volume)
			case len(args) == 1 && e.Volume == args[0]:
				words = append(words, e.Device)
			}
		}
		return nil, nil, err
	})(cmd, args)
	return completion(words, err, prefix, cobra.ShellCompDirectiveNoFileComp)
}

// all reads the pages of a list. An entry that a plugin repeats, since devices
// came and went meanwhile, is in it once.
func (p devicePlugin) all(ctx context.Context, pageSize int32) ([]client.Entry, error) {
	var all []client.Entry
	known, tokens := map[client.Entry]bool{}, map[string]bool{}
	for token := ""; ; {
		page, next, err := p.List(ctx, pageSize, token)
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			if !known[e] {
				all = append(all, e)
			}
			known[e] = true
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
