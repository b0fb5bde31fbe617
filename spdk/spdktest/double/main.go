// Command double runs a double of a SNAP or SPDK process (package spdktest) for
// demonstrations. It moves no data. It is no part of the product.
//
//	double -socket /tmp/snap.sock -snap -fork -scene scene.json
//
// While it runs it takes orders on its standard input, one on a line:
//
//	reach TCP,192.0.2.10,4420 refused   (open, refused, silent, dropped)
//	remove nqn.2026-01.example:vol1     a subsystem leaves the network
//	fail nvme0                          a controller fails until it is reset
//	restart                             the process loses everything it held
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

// run serves until ctx ends.
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
		p.Order(f.fault())
	}
	fmt.Fprintf(out, "a double of SPDK listens on %s; it moves no data\n", config.Socket)
	// A read of the standard input cannot be cut short: it ends with the process.
	go obey(n, p, in, out)
	<-ctx.Done()
	return p.Close()
}

func parse(argv []string, out io.Writer) (spdktest.Config, scene, error) {
	flags := flag.NewFlagSet("double", flag.ContinueOnError)
	flags.SetOutput(out)
	c := spdktest.Config{}
	flags.StringVar(&c.Socket, "socket", "", "the socket to listen on")
	flags.BoolVar(&c.SNAP, "snap", false, "offer SNAP's methods too")
	flags.BoolVar(&c.Envelope, "envelope", false, "let SNAP's methods answer in SNAP5's envelope")
	flags.BoolVar(&c.RBD, "rbd", false, "offer bdev_rbd_*")
	flags.StringVar(&c.Root, "root", "", "where the file system of the process begins")
	fork := flags.Bool("fork", false, "be NVIDIA's fork of 24.01 instead of 26.09-pre")
	without := flags.String("without", "", "methods, with commas between, that it does not know")
	quick := flags.Bool("quick", false, "let nothing take as long as it was measured to")
	file := flags.String("scene", "", "a file with the network around the process, in JSON")
	if err := flags.Parse(argv); err != nil {
		return c, scene{}, err
	}
	if c.Socket == "" || flags.NArg() > 0 {
		return c, scene{}, fmt.Errorf("want -socket PATH and no words beside the flags, not %q", argv)
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

func obey(n *spdktest.Network, p *spdktest.Process, in io.Reader, out io.Writer) {
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
			return fmt.Errorf("there is no controller %q", words[1])
		}
	case words[0] == "restart" && len(words) == 1:
		return p.Restart()
	default:
		return fmt.Errorf("want reach ADDRESS HOW, remove NQN, fail NAME or restart, not %q", strings.Join(words, " "))
	}
	return nil
}
