package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/listener/pressure"
	"github.com/weirproxy/weir/listener/sockets"
	"github.com/weirproxy/weir/pause"
)

// Run loads the configuration of path, as Load does, and serves it until SIGTERM or SIGINT
// ends the process. SIGHUP and changed files load it again. SIGUSR2 starts the binary again,
// which takes over (upgrade.go). On Linux, Run first drops the
// privileges that serving does not need, and then executes the binary again. An error is
// of the configuration or of the start, or says how many requests and tunnels were aborted.
func Run(path string, build Build) (err error) {
	before, err := newFormer()
	if err != nil {
		return err
	}
	defer func() { before.failed(err) }()
	if path, err = keepInput(path); err != nil {
		return err
	}
	cfg, err := Load(path)
	if err != nil {
		return err
	}
	did, err := confine(cfg) // usually confine does not return: it executes weir again in this process
	if err != nil {
		removeEmptyPIDFile(cfg.PIDFile)
		return fmt.Errorf("cannot start: %w", err)
	}
	return serveFile(path, cfg, did, build, before)
}

// serveFile serves the configuration of a file, in a process that has dropped its
// privileges.
func serveFile(path string, cfg *config.Config, did *confined, build Build, before *former) error {
	level := zap.NewAtomicLevel()
	setLevel(level, cfg.Log)
	log := newLog(cfg.Log, level, isTerminal(os.Stderr))
	logWarnings(log, cfg.Warnings)
	did.log(log)
	signals := hearSignals()
	defer signal.Stop(signals)
	s := newServer(log, level, build)
	s.watchResources(pressure.LimitMemory(os.LookupEnv, before.beside()))
	s.path, s.confined = path, did
	s.terminal, s.showRequests = isTerminal(os.Stderr), isTerminal(os.Stdout)
	s.loading.Lock() // a reload for a changed file must wait
	err := s.startFirst(cfg, before, signals)
	s.loading.Unlock()
	if err != nil {
		s.close()
		removeEmptyPIDFile(cfg.PIDFile)
		var taken unbound
		if errors.As(err, &taken) {
			return fmt.Errorf("cannot start:\n%w", err)
		}
		return fmt.Errorf("cannot start: %w", err)
	}
	log.Info("serving", zap.String("config", cmp.Or(path, BuiltIn)), zap.String("config_hash", cfg.Hash), zap.String("node", cfg.Node),
		zap.Int("listeners", len(cfg.Listeners)), zap.String("version", build.Version), zap.Int("generation", s.generations.number), zap.Int("pid", os.Getpid()))
	before.removePIDFile(cfg.PIDFile)
	if err := writePIDFile(cfg.PIDFile); err != nil {
		s.log.Error("cannot write the file of the process id", zap.Error(err))
	} else {
		s.pidFile = cfg.PIDFile
	}
	defer func() {
		if !s.hasLeft() { // the new process writes the file
			removePIDFile(cfg.PIDFile, os.Getpid())
		}
	}()
	s.notify(notifyReady)
	if every := watchdogInterval(os.LookupEnv, os.Getpid()); every > 0 {
		alive, end := context.WithCancel(context.Background()) // not s.ctx: a drain needs it too
		defer end()
		go s.watchdog(alive, every)
	}
	pause.Serve()
	go pause.Pace()
	return s.serve(signals)
}

// startFirst puts the first configuration into effect. A process that takes over returns when
// the former one has left.
func (s *server) startFirst(cfg *config.Config, before *former, signals <-chan os.Signal) error {
	if before == nil {
		if err := s.inherit(); err != nil {
			return err
		}
		return s.start(cfg, nil)
	}
	if err := errors.Join(s.confined.permits(cfg), before.permitsPIDFile(cfg.PIDFile), s.adoptFormer(before)); err != nil {
		return err
	}
	if err := s.start(cfg, nil); err != nil {
		return err
	}
	return s.takeOver(signals)
}

// inherit takes the sockets that systemd, or another service manager, has opened.
func (s *server) inherit() error {
	all, err := sockets.Activated(os.LookupEnv, os.Getpid())
	if err != nil {
		return err
	}
	sockets.ForgetActivated()
	return s.sockets.Inherit(all)
}

// hearSignals is called before weir binds an address: a process that finds the health
// port ready may send a signal at once, and an unhandled SIGTERM ends weir without a
// drain.
func hearSignals() chan os.Signal {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR2, syscall.SIGTERM, syscall.SIGINT)
	return signals
}

// serve waits for signals and changed files until a signal ends weir.
func (s *server) serve(signals <-chan os.Signal) error {
	// Reloads have their own goroutine: a reload may wait for a cluster, and must not
	// delay the signal that ends weir.
	hangups := make(chan struct{}, 1) // one waiting request stands for all later ones
	go func() {
		for range hangups {
			s.reopenLogs()
			s.generations.tell(note{Kind: noteReopen}) // otherwise their lines would go to the file that log rotation has moved away
			s.reload("SIGHUP")
		}
	}()
	s.generations.follow(func() { wake(hangups) })
	var left bool
	told := s.former.saysEnd()
	if !told {
		left = s.serveUntilEnd(signals, hangups)
	}
	s.endWatch()
	now := make(chan struct{})
	endNow := sync.OnceFunc(func() { close(now) })
	go s.hearEnd(signals, hangups, left, told, endNow)
	var err error
	if left {
		err = s.shutdownLeft(now, endNow)
	} else {
		s.notify(notifyStopping)
		err = s.shutdown(now)
	}
	if err == nil {
		s.log.Info("ended", zap.Int("pid", os.Getpid())) // after an upgrade two processes write to one log
	}
	return err
}

// serveUntilEnd handles signals until one ends weir, or until a new process has taken over: then
// it returns true.
func (s *server) serveUntilEnd(signals <-chan os.Signal, hangups chan<- struct{}) (left bool) {
	for {
		select {
		case <-s.upgrade.left:
			return true
		case sig := <-signals:
			switch sig {
			case syscall.SIGHUP:
				wake(hangups)
			case syscall.SIGUSR2:
				s.startUpgrade()
			default:
				return s.cancelUpgrade()
			}
		}
	}
}

// hearEnd calls endNow at the signal that ends weir at once, with all old processes. After an upgrade, systemd sends the
// first signal to the old process as well as to the new one: so the second one ends it. The same holds for a new
// process whom the old one has told that signal.
func (s *server) hearEnd(signals <-chan os.Signal, hangups chan<- struct{}, left, told bool, endNow func()) {
	drains := !left && !told
	for sig := range signals {
		switch {
		case sig == syscall.SIGHUP && left:
			wake(hangups)
		case sig == syscall.SIGHUP:
		case sig == syscall.SIGUSR2:
			s.log.Warn("SIGUSR2: this process ends; no upgrade was started")
		case !drains:
			drains = true
			s.log.Info("this process already ends with its connections; a second signal aborts them")
		default:
			s.log.Warn("second signal: aborting open connections")
			s.generations.tell(note{Kind: noteEnd}) // there is none if this process has left
			endNow()
			return
		}
	}
}

// fileChanged is the reason for a reload that nobody has asked for.
const fileChanged = "a file changed"

// reload loads the file again and puts it into effect. On an error, the old configuration
// stays in effect, and weir logs and counts the error.
func (s *server) reload(because string) error {
	s.notify(notifyReloading())
	defer s.notify(notifyReady)
	s.loading.Lock() // otherwise an older file, or its result, could take effect after a newer one
	defer s.loading.Unlock()
	err := s.loadAndApply(because != fileChanged)
	if err == errLeft {
		s.passReload()
		return err
	}
	held, _ := err.(*heldError)
	if s.tellHeld(held); held != nil {
		s.metrics.success.Set(1) // unlike a file before it, perhaps, this one has no errors
		s.tellKept()
		return err
	}
	s.metrics.reloaded(err)
	if err != nil {
		s.lasting.begins(loadingProblem, reloadProblem(err))
		for _, p := range problems(err) {
			s.log.Error("the configuration was not loaded; the previous one stays in effect", zap.String("because", because), zap.String("error", p.Error()))
		}
		return err
	}
	for _, err := range s.sockets.Unreachable() {
		s.log.Warn("a listener is not reachable", zap.Error(err))
	}
	if n := s.tellKept(); n > 0 {
		s.log.Error("configuration loaded, but some of its files cannot be used; their previous content stays in use, and the warnings name them",
			zap.String("because", because), zap.Int("files", n), zap.String("config_hash", s.configInEffect().Hash))
		return nil
	}
	s.log.Info("configuration loaded", zap.String("because", because), zap.String("config_hash", s.configInEffect().Hash))
	return nil
}

// errLeft means that another process has taken over, and loads the configuration.
var errLeft = errors.New("another process has taken over")

// heldError means that a changed file waits for a signal, because of what its configuration would lose.
type heldError struct{ lost []string }

// mostLost limits what the text of a heldError names.
const mostLost = 10

// Error says what would be lost, and how to apply the file.
func (h *heldError) Error() string {
	text := strings.Join(h.lost[:min(len(h.lost), mostLost)], ", ")
	if more := len(h.lost) - mostLost; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return "the changed configuration file is held (reload: careful), because it would lose " + text + "; to apply it, run weir reload or send SIGHUP"
}

// tellHeld notes whether a file is held.
func (s *server) tellHeld(h *heldError) {
	if h == nil {
		s.metrics.held.Set(0)
		s.lasting.ends(heldProblem)
		return
	}
	s.metrics.held.Set(1)
	s.lasting.begins(heldProblem, h.Error())
	s.log.Warn(h.Error(), zap.Int("lost", len(h.lost)))
}

// tellKept notes how many files of the configuration in effect cannot be used. It replaces the error of a file.
func (s *server) tellKept() (n int) {
	if n = s.fileInEffect().KeptFiles(); n == 0 {
		s.lasting.ends(loadingProblem)
		return 0
	}
	s.lasting.begins(loadingProblem, fmt.Sprintf("%d files of the configuration cannot be used, so their previous content stays in use; warnings in the log name them", n))
	return n
}

// loadAndApply loads the file and puts it into effect. asked: somebody wants just that, so no file is held. s.loading is held.
func (s *server) loadAndApply(asked bool) error {
	if s.hasLeft() {
		return errLeft
	}
	defer pause.Begin()()
	var read file.Contents // the watch notices changes after this point
	if former := s.fileInEffect(); former != nil {
		read = file.ContentsOf(former.Files())
	}
	s.reloadCertificates()
	if s.path == "" || s.path == "-" {
		return errors.New("the configuration came from standard input, so weir cannot read it again; it has read the certificate files again")
	}
	cfg, err := file.Reload(s.path, os.LookupEnv, config.InUse{Pair: s.certs.InUse, CRL: s.crls.InUse, Auth: s.filters.InUse})
	if err != nil {
		return err
	}
	if old := s.fileInEffect(); old != nil && !asked && old.Reload == config.ReloadCareful {
		if lost := config.Lost(old, cfg); len(lost) > 0 {
			s.watch(cfg, read, old.Files()...)
			return &heldError{lost}
		}
	}
	logWarnings(s.log, cfg.Warnings)
	if old := s.configInEffect(); old != nil {
		for _, key := range config.ChangedByRestart(old, cfg) {
			s.log.Warn("a changed " + key + " takes effect only after a restart" + orUpgrade(key))
		}
	}
	if err := s.confined.permits(cfg); err != nil {
		return err
	}
	return s.start(cfg, read)
}

// orUpgrade says whether an upgrade also changes a key that a reload cannot change. The new process of
// an upgrade has the rights of the old one.
func orUpgrade(key string) string {
	switch key {
	case "user", "landlock", "seccomp":
		return ""
	}
	return " or an upgrade (SIGUSR2)"
}

// start first watches the files of a configuration that was just loaded, and then puts it
// into effect. In the other order, changes in between would go unnoticed. file.NewWatch
// explains read.
func (s *server) start(cfg *config.Config, read file.Contents) error {
	s.watch(cfg, read)
	return s.apply(cfg)
}

// watch watches the file, the certificates and keys that cfg names, and more files. It replaces the
// previous watch.
func (s *server) watch(cfg *config.Config, read file.Contents, more ...string) {
	if s.path == "" {
		return
	}
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	if s.unwatched {
		return
	}
	w, err := file.NewWatch(s.path, cfg, read, more...)
	switch {
	case err != nil && s.stopWatch != nil: // most files are the same, and the next change is another attempt
		s.log.Error("weir cannot watch the files of this configuration for changes, and goes on watching those of the previous one", zap.Error(err))
		return
	case err != nil:
		s.log.Error("weir cannot watch the configuration file for changes; send SIGHUP to load it", zap.Error(err))
		return
	case s.stopWatch != nil:
		s.stopWatch()
	}
	ctx, stop := context.WithCancel(s.ctx)
	s.stopWatch = stop
	go w.Run(ctx, s.filesChanged)
}

func (s *server) filesChanged() {
	if in := s.fileInEffect(); s.path != "-" && (in == nil || in.Reload != config.ReloadSignal) {
		s.reload(fileChanged)
		return
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	s.reloadCertificates()
}

// endWatch ends the watch; no other watch begins.
func (s *server) endWatch() {
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	s.unwatched = true
	if s.stopWatch != nil {
		s.stopWatch()
	}
}

func wake(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

type watcher struct {
	loading   sync.Mutex // held while a configuration is loaded and applied
	watchMu   sync.Mutex
	stopWatch context.CancelFunc
	unwatched bool
}

func (s *server) reopenLogs() {
	if a := s.lines.Load(); a != nil {
		if err := a.Reopen(); err != nil {
			s.log.Error("weir cannot open the access log again, and continues in the old file", zap.Error(err))
		}
	}
}

// problems returns the errors of a configuration, each for its own line.
func problems(err error) (all []error) {
	var wrong config.Errors
	var taken unbound
	switch {
	case errors.As(err, &wrong):
		for _, e := range wrong {
			all = append(all, e)
		}
		return all
	case errors.As(err, &taken):
		return taken
	}
	return []error{err}
}

// mostWarnings limits the log lines about a configuration: thousands of routes may have the same
// fault, and each reload warns again.
const mostWarnings = 50

func logWarnings(log *zap.Logger, all config.Errors) {
	for _, w := range all[:min(len(all), mostWarnings)] {
		log.Warn(w.Error())
	}
	if more := len(all) - mostWarnings; more > 0 {
		log.Warn(fmt.Sprintf("the configuration has %d more warnings; weir check shows all of them", more))
	}
}
