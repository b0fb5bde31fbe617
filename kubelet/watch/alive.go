package watch

import (
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/grpcline"
	"github.com/cleatproject/cleat/internal/linux/epoll"
)

// lives holds one idle connection to each registered plugin, to learn at once
// when it dies: that over which it was registered. It is a polite one of
// HTTP/2. A silent connection would be thrown out by servers after two minutes,
// and until then keep them from shutting down. There is no goroutine for each,
// only one that waits for all.
type lives struct {
	set  *epoll.Set
	most int // connections; the others are looked at now and then
	held map[uint64]*grpcline.Idle
}

func newLives() (*lives, error) {
	set, err := epoll.New()
	if err != nil {
		return nil, err
	}
	// Half of the descriptors are left for everything else.
	l := &lives{set: set, most: 512, held: map[uint64]*grpcline.Idle{}}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		l.most = int(min(limit.Cur/2, 1<<20))
	}
	return l, nil
}

// hold keeps a connection; false: there is no room for it, and it is closed.
func (l *lives) hold(token uint64, i *grpcline.Idle) bool {
	l.drop(token)
	if len(l.held) < l.most {
		var err error
		failed := i.Control(func(fd uintptr) { err = l.set.Add(int(fd), token) })
		if failed == nil && err == nil {
			l.held[token] = i
			return true
		}
	}
	_ = i.Close()
	return false
}

func (l *lives) drop(token uint64) {
	if i := l.held[token]; i != nil {
		_ = i.Close()
		delete(l.held, token)
	}
}

// close ends everything; nobody waits any more.
func (l *lives) close() error {
	for token := range l.held {
		l.drop(token)
	}
	return l.set.Close()
}

// stirred takes in what the other end says. It reports whether that was the
// end of the connection.
func (l *lives) stirred(token uint64) (ended bool) {
	i := l.held[token]
	if i == nil || i.Stir() {
		return false
	}
	l.drop(token)
	return true
}
