// Command double runs a test double of a SNAP or SPDK process (package
// spdktest) for demonstrations. It moves no data, and is not part of the
// product.
//
//	double -socket /tmp/snap.sock -snap -fork -scene scene.json
//
// It reads commands from standard input, one per line:
//
//	reach TCP,192.0.2.10,4420 refused   set reachability: open, refused, silent, dropped
//	remove nqn.2026-01.example:vol1     remove a subsystem from the network
//	fail nvme0                          make a controller fail until it is reset
//	restart                             restart the process, which loses its state
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/cleatproject/cleat/spdk/spdktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "double:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, argv []string, in io.Reader, out io.Writer) error {
	config, scene, err := parse(argv, out)
	if err != nil {
		return err
	}
	n := spdktest.NewNetwork(nil)
	if err := scene.set(n); err != nil {
		return err
	}
	p, err := n.Start(config)
	if err != nil {
		return err
	}
	for _, f := range scene.Faults {
		p.Inject(f.fault())
	}
	fmt.Fprintf(out, "SPDK test double listens on %s; it moves no data\n", config.Socket)
	// A read of standard input ends only with the process.
	go handleCommands(n, p, in, out)
	<-ctx.Done()
	return p.Close()
}

func parse(argv []string, out io.Writer) (spdktest.Config, scene, error) {
	flags := flag.NewFlagSet("double", flag.ContinueOnError)
	flags.SetOutput(out)
	c := spdktest.Config{}
	flags.StringVar(&c.Socket, "socket", "", "UNIX socket to listen on (required)")
	flags.BoolVar(&c.SNAP, "snap", false, "serve the methods of SNAP as well")
	flags.BoolVar(&c.Envelope, "envelope", false, "wrap results of SNAP's methods in the envelope of SNAP 5")
	flags.BoolVar(&c.RBD, "rbd", false, "serve bdev_rbd_*")
	flags.StringVar(&c.Root, "root", "", "root directory of the process's file system")
	fork := flags.Bool("fork", false, "emulate NVIDIA's fork of SPDK 24.01 instead of 26.09-pre")
	without := flags.String("without", "", "comma-separated methods that the process does not have")
	quick := flags.Bool("quick", false, "no delays instead of the measured ones")
	file := flags.String("scene", "", "JSON file with the network and the faults")
	if err := flags.Parse(argv); err != nil {
		return c, scene{}, err
	}
	if c.Socket == "" || flags.NArg() > 0 {
		return c, scene{}, fmt.Errorf("-socket PATH is required, and arguments are not allowed, got %q", argv)
	}
	if *fork {
		c.Flavour = spdktest.Fork
	}
	if *without != "" {
		c.Without = strings.Split(*without, ",")
	}
	if !*quick {
		c.Timing = spdktest.MeasuredTiming()
	}
	s, err := read(*file)
	return c, s, err
}

func handleCommands(n *spdktest.Network, p *spdktest.Process, in io.Reader, out io.Writer) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		if err := order(n, p, words); err != nil {
			fmt.Fprintln(out, err)
			continue
		}
		fmt.Fprintln(out, "done:", lines.Text())
	}
}

func order(n *spdktest.Network, p *spdktest.Process, words []string) error {
	switch {
	case words[0] == "reach" && len(words) == 3:
		var r reach
		if err := r.UnmarshalText([]byte(words[2])); err != nil {
			return err
		}
		var a address
		if err := a.UnmarshalText([]byte(words[1])); err != nil {
			return err
		}
		n.SetReach(spdktest.Address(a), spdktest.Reach(r))
	case words[0] == "remove" && len(words) == 2:
		n.Remove(words[1])
	case words[0] == "fail" && len(words) == 2:
		if !p.Fail(words[1]) {
			return fmt.Errorf("controller %q not found", words[1])
		}
	case words[0] == "restart" && len(words) == 1:
		return p.Restart()
	default:
		return fmt.Errorf("unknown command %q: use reach ADDRESS STATE, remove NQN, fail NAME or restart", strings.Join(words, " "))
	}
	return nil
}
