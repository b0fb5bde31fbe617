package sock

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// serve is a storage server. It listens on all addresses, prints "ready", and
// follows commands on standard input.
//
//	echo   answers each byte
//	idle   accepts nothing until a command, then is as "hang"
//	hang   accepts one connection and reads nothing until "read"; then it
//	       says how many bytes it got, and closes on "close"
//	child  accepts one connection, hands it to a child and closes its own
//	lost   accepts one connection and keeps it where no descriptor shows it
func serve(mode string, listen []string) error {
	var listeners []net.Listener
	for _, address := range listen {
		l, err := net.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(port)))
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	fmt.Println("ready")
	commands := bufio.NewScanner(os.Stdin)
	if mode == "echo" {
		for _, l := range listeners {
			go echo(l)
		}
		commands.Scan()
		return nil
	}
	if mode == "idle" {
		commands.Scan()
	}
	conn, err := listeners[0].Accept()
	if err != nil {
		return err
	}
	fmt.Println("accepted")
	switch mode {
	case "child":
		return handOver(conn.(*net.TCPConn), commands)
	case "lost":
		return lose(conn.(*net.TCPConn), commands)
	}
	commands.Scan()
	n, err := io.Copy(io.Discard, conn)
	fmt.Println("got", n, err)
	commands.Scan()
	_ = conn.Close()
	fmt.Println("closed")
	commands.Scan()
	return nil
}

func echo(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "the server accepts no more:", err)
			return
		}
		go func() {
			defer conn.Close()
			// splice takes two more descriptors each.
			_, _ = io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
		}()
	}
}

func handOver(conn *net.TCPConn, commands *bufio.Scanner) error {
	file, err := conn.File()
	if err != nil {
		return err
	}
	child := exec.Command("sleep", "600")
	child.ExtraFiles = []*os.File{file}
	if err := child.Start(); err != nil {
		return err
	}
	_, _ = file.Close(), conn.Close()
	fmt.Println("child", child.Process.Pid)
	commands.Scan()
	_ = child.Process.Kill()
	_ = child.Wait()
	fmt.Println("killed")
	commands.Scan()
	return nil
}

// lose sends the descriptor to a socket without a reader: as with a server in
// the kernel, the connection is open but no process has it.
func lose(conn *net.TCPConn, commands *bufio.Scanner) error {
	file, err := conn.File()
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(int(file.Fd())), nil, 0); err != nil {
		return err
	}
	_, _ = file.Close(), conn.Close()
	fmt.Println("lost")
	commands.Scan()
	return nil
}
