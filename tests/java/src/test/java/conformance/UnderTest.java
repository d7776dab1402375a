package conformance;

import java.lang.reflect.Method;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.InvocationInterceptor;
import org.junit.jupiter.api.extension.ReflectiveInvocationContext;
import org.junit.jupiter.api.extension.ExtensionContext.Namespace;
import org.opentest4j.TestAbortedException;

/** Starts the broker that all suites share, and turns scenarios marked {@link Later} round. */
class UnderTest implements BeforeAllCallback, InvocationInterceptor {
    /** Whether a running broker was named, which must not be restarted. */
    static final boolean EXTERNAL = !System.getenv().getOrDefault("PULSAR_URL", "").isEmpty();

    /** The shared broker. */
    record Shared(Broker broker) implements ExtensionContext.Store.CloseableResource {
        @Override
        public void close() throws Throwable {
            broker.close();
        }
    }

    static volatile Shared shared;

    @Override
    public void beforeAll(ExtensionContext context) {
        shared = context.getRoot().getStore(Namespace.GLOBAL).getOrComputeIfAbsent("shared", key -> {
            try {
                Broker broker;
                if (EXTERNAL) {
                    String admin = System.getenv().getOrDefault("PULSAR_ADMIN_URL", "");
                    if (admin.isEmpty()) {
                        throw new IllegalStateException("PULSAR_URL needs PULSAR_ADMIN_URL=http://HOST:PORT as well");
                    }
                    broker = Broker.running(System.getenv("PULSAR_URL"), admin);
                } else {
                    broker = Broker.own(0).start();
                }
                return new Shared(broker);
            } catch (Exception error) {
                throw new IllegalStateException(error.getMessage(), error);
            }
        }, Shared.class);
    }

    @Override
    public void interceptTestMethod(Invocation<Void> invocation, ReflectiveInvocationContext<Method> context, ExtensionContext extension)
            throws Throwable {
        turnRound(invocation, context);
    }

    @Override
    public void interceptTestTemplateMethod(Invocation<Void> invocation, ReflectiveInvocationContext<Method> context, ExtensionContext extension)
            throws Throwable {
        turnRound(invocation, context);
    }

    private static void turnRound(Invocation<Void> invocation, ReflectiveInvocationContext<Method> context) throws Throwable {
        Later later = context.getExecutable().getAnnotation(Later.class);
        if (later == null || EXTERNAL) {
            invocation.proceed();
            return;
        }
        try {
            invocation.proceed();
        } catch (Throwable error) {
            throw new TestAbortedException("not served by Vela yet: " + later.value() + " (" + error + ")");
        }
        throw new AssertionError("works now: take @Later(\"" + later.value() + "\") away");
    }
}
